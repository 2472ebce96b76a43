"""Who is refused because it would start or end too late."""

from __future__ import annotations

import pytest

from cluster.models import Windows
from cluster.queue.entries import Mail
from cluster.queue.heartbeats import ReplicaRecord, RouterBeatReply
from penstock.models import ReplicaState, RequestClass
from penstock.values.slo import ClassSlo
from penstock.values.steps import Relief
from router.admission.shedding import SHED, WAIT_MARGIN, TimeBounds, late_after_s, refusal, shed_after_s
from router.admission.wait_estimate import EXPIRY_S, PoolEstimate


@pytest.mark.parametrize("relief", Relief)
def test_only_the_last_step_of_relief_refuses(relief: Relief) -> None:
    slo = ClassSlo(ttft_p99_s=2.0, itl_p95_s=0.1)

    assert (2.0 if relief is Relief.SHED else None) == shed_after_s(slo, relief)


def test_a_class_that_is_promised_no_first_token_waits() -> None:
    assert shed_after_s(ClassSlo(itl_p95_s=0.1), Relief.SHED) is None


@pytest.mark.parametrize(
    ("first_token_s", "after_s"),
    [(None, 2.0), (0.5, 1.5), (0.999, 1.001), (1.5, 1.0), (60.0, 1.0)],
)
def test_who_waits_is_late_once_the_first_token_cannot_come_in_time(
    first_token_s: float | None, after_s: float
) -> None:
    assert after_s == pytest.approx(late_after_s(ClassSlo(ttft_p99_s=2.0), first_token_s))


def test_a_class_that_is_promised_no_first_token_is_never_late() -> None:
    assert late_after_s(ClassSlo(itl_p95_s=0.1), 0.5) is None


@pytest.mark.parametrize("first_token_s", [0.0, 0.4, 1.0, 1.9])
def test_who_is_let_in_while_others_are_refused_is_not_expected_to_be_late(first_token_s: float) -> None:
    slo = ClassSlo(ttft_p99_s=2.0)
    bounds = TimeBounds(shed_after_s=shed_after_s(slo, Relief.SHED), first_token_s=first_token_s)
    waits = [each / 100 for each in range(300)]

    longest = max(wait for wait in waits if refusal(wait, bounds) is None)

    late_after = late_after_s(slo, first_token_s)
    assert late_after is not None
    assert longest < late_after


@pytest.mark.parametrize(
    "bounds",
    [
        TimeBounds(),
        TimeBounds(queue_timeout_s=3.0),
        TimeBounds(shed_after_s=WAIT_MARGIN * 3.0 + 0.5, first_token_s=0.5),
        TimeBounds(left_s=5.0, run_s=2.0),
    ],
)
def test_who_is_within_every_bound_waits(bounds: TimeBounds) -> None:
    assert refusal(3.0, bounds) is None


def test_nobody_is_refused_while_nothing_is_known() -> None:
    assert refusal(None, TimeBounds(queue_timeout_s=0.1, shed_after_s=0.1, left_s=0.1)) is None


@pytest.mark.parametrize(
    ("bounds", "bound", "takes_s", "bound_s"),
    [
        (TimeBounds(queue_timeout_s=2.0), "queue_timeout", 3.0, 2.0),
        (TimeBounds(shed_after_s=4.0, first_token_s=0.5), SHED, WAIT_MARGIN * 3.0 + 0.5, 4.0),
        (TimeBounds(left_s=4.0, run_s=2.0), "deadline", 5.0, 4.0),
        # The client's own bound is the reason that it can do most about.
        (TimeBounds(queue_timeout_s=2.0, shed_after_s=1.0, left_s=1.0), "queue_timeout", 3.0, 2.0),
    ],
)
def test_a_refusal_says_which_bound_and_when_to_come_again(
    bounds: TimeBounds, bound: str, takes_s: float, bound_s: float
) -> None:
    error = refusal(3.0, bounds)

    assert error is not None
    assert (bound, bound_s) == (error.bound, error.bound_s)
    assert takes_s == pytest.approx(error.wait_s)
    assert takes_s - bound_s == pytest.approx(error.retry_after_s)


def test_the_estimate_is_what_is_ahead_over_the_rate_of_starts() -> None:
    estimate = PoolEstimate()
    for second in range(12):
        estimate.beat(beat(1000 * second, waiting=20, granted=5 * second))

    assert (10 + 1) / 5 == pytest.approx(estimate.wait_s(RequestClass.STANDARD, ahead=10))


@pytest.mark.parametrize("every_s", [15, 120])
def test_a_while_without_a_start_is_no_change_of_pace(every_s: int) -> None:
    """Eight sequences that run for two minutes each, one after the other or all at once."""
    estimate = PoolEstimate()
    together = every_s * 8 // 120
    waits: list[float] = []
    for second in range(1200):
        estimate.beat(beat(1000 * second, waiting=20, granted=together * (second // every_s)))
        if second >= 600:
            waits.append(estimate.wait_s(RequestClass.STANDARD, ahead=7) or 0.0)

    assert 60 < min(waits)
    assert max(waits) < 240


def test_a_pace_that_changes_is_known_soon() -> None:
    estimate = PoolEstimate()
    for second in range(600):
        estimate.beat(beat(1000 * second, waiting=20, granted=second // 15))
    for second in range(600, 630):
        estimate.beat(beat(1000 * second, waiting=20, granted=40 + 2 * (second - 600)))
    faster = estimate.wait_s(RequestClass.STANDARD, ahead=7)
    for second in range(630, 720):
        estimate.beat(beat(1000 * second, waiting=20, granted=98 + (second - 630) // 15))

    assert faster is not None
    assert 4.0 < faster < 6.0
    assert 60.0 < (estimate.wait_s(RequestClass.STANDARD, ahead=7) or 0.0)


def test_the_way_to_the_first_token_is_that_of_all_prompts() -> None:
    estimate = PoolEstimate()
    assert estimate.first_token_s is None
    for _ in range(100):
        estimate.ran(200, 10, prefill_s=0.4, decode_s=1.0)
        estimate.ran(800, 10, prefill_s=1.6, decode_s=1.0)

    assert 0.9 < (estimate.first_token_s or 0) < 1.1


def test_a_cold_start_says_nothing_of_the_time_after_it() -> None:
    estimate = PoolEstimate()
    for second in range(20):
        estimate.beat(beat(1000 * second, waiting=20, granted=5 * second))
    before = estimate.wait_s(RequestClass.STANDARD, 9)
    for second in range(20, 80):
        state = ReplicaState.STARTING if second < 79 else ReplicaState.READY
        estimate.beat(beat(1000 * second, waiting=20, granted=95, replica=state))

    assert before == estimate.wait_s(RequestClass.STANDARD, 9) == pytest.approx(2.0)


def test_what_a_line_said_long_ago_refuses_nobody() -> None:
    estimate = PoolEstimate()
    for second in range(200):
        estimate.beat(beat(1000 * second, waiting=20, granted=min(second, 1)))
    crawling = estimate.wait_s(RequestClass.STANDARD, 0)
    for second in range(200, 200 + int(EXPIRY_S) + 1):
        estimate.beat(beat(1000 * second, waiting=0, granted=10 * second))

    assert crawling is not None
    assert crawling > 100
    assert estimate.wait_s(RequestClass.STANDARD, 0) is None

    # The next line is learnt from afresh.
    for second in range(400, 403):
        estimate.beat(beat(1000 * second, waiting=20, granted=10 * second))
    assert estimate.wait_s(RequestClass.STANDARD, 9) == pytest.approx(1.0)


NOW_MS = 10**8


@pytest.mark.parametrize("jump_ms", [-3 * 3_600_000, -1000, 3 * 3_600_000])
def test_a_clock_that_is_set_says_nothing_of_the_pace(jump_ms: int) -> None:
    estimate = PoolEstimate()
    for second in range(100):
        estimate.beat(beat(NOW_MS + 1000 * second, waiting=20, granted=5 * second))
    for second in range(100, 103):
        estimate.beat(beat(NOW_MS + jump_ms + 1000 * second, waiting=20, granted=5 * second))

    assert estimate.wait_s(RequestClass.STANDARD, 9) == pytest.approx(2.0)


@pytest.mark.parametrize("jump_ms", [-3 * 3_600_000, -1000, 3 * 3_600_000])
def test_a_rate_gets_old_although_the_clock_was_set(jump_ms: int) -> None:
    """Set back, the last lesson would lie in the future for hours, and refuse who comes."""
    estimate = PoolEstimate()
    for second in range(100):
        estimate.beat(beat(NOW_MS + 1000 * second, waiting=20, granted=5 * second))
    for second in range(100, 102 + int(EXPIRY_S)):
        estimate.beat(beat(NOW_MS + jump_ms + 1000 * second, waiting=0, granted=500))

    assert estimate.wait_s(RequestClass.STANDARD, 9) is None


def beat(time_ms: int, *, waiting: int, granted: int, replica: ReplicaState = ReplicaState.READY) -> RouterBeatReply:
    record = ReplicaRecord("r", b"", replica, Windows(8, 1000, 1000), 0, 0, 0, 0)
    return RouterBeatReply(
        Mail(), (record,), 0, (0, waiting, 0), 0, (), {}, "store", granted=(0, granted, 0), time_ms=time_ms
    )
