"""Bounds and the search for the highest rate that holds them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cluster.errors import SettingsError
from loadtest.load.asserts import failures, parse_bounds
from loadtest.load.record import Record
from loadtest.load.sweep import SPARE_TRIALS, Plan, Trial, search, wilson
from loadtest.load.tally import Window


def figures() -> dict[str, Any]:
    record = Record()
    window = Window(0)
    tally = window.of("chat")
    tally.ended, tally.completed, tally.good = 100, 99, 98
    tally.errors["QUEUE_FULL"] = 1
    for number in range(1, 101):
        tally.times["ttft"].add(number / 1000)
        window.generator.lag.add(0.002)
    record.add(window)
    return record.as_json(10.0)


@pytest.mark.parametrize(
    "text",
    [
        "ttft_p99<500ms,goodput>0.97",
        "ttft_p50 <= 51ms",
        "ttft_max<0.11s, ttft_mean>50000us",
        "goodput>=98%,error_rate<2%",
        "rps>9.8,requests>=100",
        "chat.ttft_p95<96ms",
        "generator_lag_p99<3ms",
    ],
)
def test_bounds_that_hold(text: str) -> None:
    assert [] == failures(parse_bounds(text), figures())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft_p99<50ms", "ttft_p99<50ms: it was 9"),
        ("goodput>0.99", "goodput>0.99: it was 0.98"),
        ("itl_p99<1s", "nothing was measured"),
        ("rag.goodput>0.5", "no requests of kind rag"),
    ],
)
def test_a_broken_bound_says_what_was_found(text: str, said: str) -> None:
    (sentence,) = failures(parse_bounds(text), figures())
    assert said in sentence


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least one bound"),
        ("ttft_p99=5ms", "must be METRIC"),
        ("ttft_p99<500", "needs a unit, one of us, ms, s, min; got ''"),
        ("ttft_p98<5ms", "ttft has the figures mean, p50"),
        ("latency<5ms", "unknown metric 'latency'"),
        ("goodput>99", "from 0 to 1; got 99"),
        ("rps>5ms", "rps takes no unit 'ms'"),
        ("goodput>0.9.9", "is no number"),
        ("chat.generator_lag_p99<5ms", "not kept by kind"),
    ],
)
def test_a_bound_that_cannot_be_understood_says_why(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_bounds(text)
    assert said in str(caught.value)


def trial_at(knee: float, noise: float = 0.0, trusted: bool = True) -> Any:
    rnd = random.Random(1)

    def run(rate: float, repeat: int) -> Trial:
        held = rate <= knee * (1 + rnd.uniform(-noise, noise))
        return Trial(rate, repeat, held, trusted, 990 if held else 500, 1000, {})

    return run


@pytest.mark.parametrize("knee", [1.0, 1.3, 17.0, 63.9, 100.0])
def test_the_knee_is_found_within_the_precision(knee: float) -> None:
    found = search(Plan(1.0, 128.0, repeats=1, precision=0.05), trial_at(knee))
    assert found.holds is not None
    assert found.holds <= knee
    assert found.fails is not None
    assert found.fails > knee
    assert found.fails / found.holds <= 1.05


def test_the_majority_of_noisy_trials_decides() -> None:
    found = search(Plan(1.0, 128.0, repeats=5, precision=0.02), trial_at(20.0, noise=0.1))
    assert found.holds is not None
    assert pytest.approx(20.0, rel=0.12) == found.holds
    assert max(trial.repeat for trial in found.trials) <= 4
    assert found.attainment is not None
    held, tried = map(int, found.votes.split("/"))
    assert held == 3
    pooled = (990 * held + 500 * (tried - held)) / (1000 * tried)
    assert found.attainment[0] < pooled < found.attainment[1]


def test_no_more_trials_run_than_decide() -> None:
    found = search(Plan(1.0, 4.0, repeats=3), trial_at(100.0))
    assert [(1.0, 0), (1.0, 1), (2.0, 0), (2.0, 1), (4.0, 0), (4.0, 1)] == [(t.rate, t.repeat) for t in found.trials]
    assert (4.0, None) == (found.holds, found.fails)
    assert "no higher rate was tried" in found.sentence()


def test_trials_that_a_late_generator_broke_are_run_again() -> None:
    ran: list[tuple[float, int]] = []

    def trial(rate: float, repeat: int) -> Trial:
        ran.append((rate, repeat))
        late = repeat == 0
        return Trial(rate, repeat, rate <= 2 and not late, not late, 99, 100, {})

    found = search(Plan(1.0, 4.0, repeats=1, precision=0.9), trial)
    assert (2.0, pytest.approx(8**0.5)) == (found.holds, found.fails)
    assert [(1.0, 0), (1.0, 1), (2.0, 0), (2.0, 1), (4.0, 0), (4.0, 1)] == ran[:6]
    assert found.trusted
    assert "1/1" == found.votes


def test_a_cluster_that_holds_nothing_is_said_to() -> None:
    found = search(Plan(1.0, 4.0, repeats=1), trial_at(0.5, trusted=False))
    assert (None, 1.0) == (found.holds, found.fails)
    assert 1 + SPARE_TRIALS == len(found.trials)
    assert not found.trusted
    assert "not even 1 requests/s" in found.sentence()


def test_the_interval_covers_the_true_part_about_as_often_as_it_says() -> None:
    rnd = random.Random(3)
    covered = 0
    for _ in range(400):
        low, high = wilson(sum(rnd.random() < 0.97 for _ in range(200)), 200)
        covered += low <= 0.97 <= high
    assert 0.92 <= covered / 400 <= 0.99


@pytest.mark.parametrize("plan", [(2.0, 1.0, 3, 0.1), (1.0, 2.0, 2, 0.1), (1.0, 2.0, 3, 0.001)])
def test_a_search_that_makes_no_sense_is_refused(plan: tuple[float, float, int, float]) -> None:
    with pytest.raises(SettingsError, match="sweep"):
        Plan(*plan)
