"""Who stands by, and what counts as serving, starting and standing by."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.control.snapshot import GroupSnapshot
from cluster.models import Windows
from cluster.queue.heartbeats import PoolView, ReplicaRecord
from cluster.standby.pool import (
    StandbyBounds,
    most_with_standbys,
    newcomers,
    order_standbys,
    sleepers,
    with_standbys,
)
from cluster.standby.rule import StandbyLimits, StandbyState
from penstock.models import ReplicaState

LIMITS = StandbyLimits(most=4, price=0.3)
BOUNDS = StandbyBounds(10)


def record(name: str, state: ReplicaState, up_s: float, **stats: float) -> ReplicaRecord:
    return ReplicaRecord(name, b"", state, Windows(8, 1000, 1000), 0, 0, 0, 0, {"up_s": up_s, **stats})


def view(*records: ReplicaRecord) -> PoolView:
    return PoolView(1_000_000, "run", records, (), (0, 0, 0), (0, 0, 0), 0, None, ())


def pool(ready: int, standing: int) -> PoolView:
    """Return a pool whose newest replicas stand by."""
    states = [ReplicaState.READY] * ready + [ReplicaState.STANDBY] * standing
    return view(*(record(f"r{n}", state, 1000.0 - n) for n, state in enumerate(states)))


@given(st.dictionaries(st.text("abc", min_size=1), st.floats(0, 1e6), max_size=12), st.integers(0, 14))
def test_the_oldest_serve_and_the_others_stand_by(ages: dict[str, float], serving: int) -> None:
    found = sleepers(ages, serving)
    assert max(0, len(ages) - serving) == len(set(found))
    awake = ages.keys() - set(found)
    assert all(ages[one] >= ages[other] for one in awake for other in found)


@given(
    st.dictionaries(st.text("abc", min_size=1), st.floats(0, 200), max_size=12),
    st.integers(0, 14),
    st.sets(st.text("abc", min_size=1)),
)
def test_no_standby_is_much_older_than_a_replica_that_serves(
    ages: dict[str, float], serving: int, before: set[str]
) -> None:
    found = sleepers(ages, serving, before)
    assert max(0, len(ages) - serving) == len(set(found))
    awake = ages.keys() - set(found)
    assert all(ages[one] + 30.0 >= ages[other] for one in awake for other in found)
    # An order that is given again changes nothing, however the ages scatter.
    scattered = {name: age + len(name) % 7 / 7 for name, age in ages.items()}
    close = max(ages.values(), default=0) - min(ages.values(), default=0) < 29.0
    assert not close or {*found} == {*sleepers(scattered, serving, found)}


def test_replicas_that_started_together_do_not_change_places() -> None:
    """Heartbeats come at different times, so either may look older than the other."""

    def looked_at(*up_s: float) -> PoolView:
        return view(*(record(f"r{n}", ReplicaState.READY, each) for n, each in enumerate(up_s)))

    seen, limits = GroupSnapshot(1000.0, ready=2), StandbyLimits(least=1, most=1)
    order = order_standbys(limits, seen, looked_at(50.0, 20.0, 20.9), 2, StandbyState(), BOUNDS)
    assert ("r1",) == order.names
    for ages in ((65.0, 35.9, 35.0), (80.0, 50.0, 50.9), (95.0, 65.9, 65.0)):
        order = order_standbys(limits, seen, looked_at(*ages), 2, order.made.state, BOUNDS)
        assert ("r1",) == order.names
    # One that wakes is not told to sleep again, however long it takes.
    for ages in ((110.0, 80.0, 80.9), (125.0, 95.9, 95.0)):
        order = order_standbys(limits, seen, looked_at(*ages), 3, order.made.state, BOUNDS)
        assert () == order.names


@pytest.mark.parametrize(
    ("standing", "asked", "state", "starting", "standby"),
    [
        (2, 0, StandbyState(serving=3, standby=2), 0, 2),
        # Both were told to wake.
        (2, 0, StandbyState(serving=5, standby=0), 2, 0),
        # One wakes, and one more was ordered.
        (1, 1, StandbyState(serving=5, standby=0), 2, 0),
        # One that was ordered is to stand by.
        (0, 1, StandbyState(serving=3, standby=1), 0, 0),
        # The platform is about to remove one.
        (2, 0, StandbyState(serving=3, standby=1), 0, 2),
        # Of a leader that never decided.
        (1, 0, StandbyState(), 1, 0),
        (0, 2, StandbyState(serving=3), 2, 0),
    ],
)
def test_what_counts_as_starting(standing: int, asked: int, state: StandbyState, starting: int, standby: int) -> None:
    seen = with_standbys(GroupSnapshot(1000.0, ready=3, starting=asked), standing, 0, state)
    assert (3, starting, standby) == (seen.ready, seen.starting, seen.standby)


@pytest.mark.parametrize(
    ("ready", "standing", "new", "state", "expected"),
    [
        # A standby has started, and has not heard yet that it is one.
        (4, 0, 1, StandbyState(serving=3, standby=1), (3, 0, 1)),
        (5, 1, 1, StandbyState(serving=3, standby=2), (4, 0, 2)),
        # One more than both numbers: the platform has not removed it yet.
        (5, 0, 2, StandbyState(serving=3, standby=1), (4, 0, 1)),
        # One that served has died, and a standby stands in for it.
        (2, 1, 0, StandbyState(serving=3, standby=1), (2, 0, 1)),
        (3, 1, 1, StandbyState(serving=3, standby=1), (3, 0, 1)),
        # Nobody gave orders for a while, so all are awake.
        (4, 0, 0, StandbyState(serving=1, standby=3), (4, 0, 0)),
        # Of a leader that never decided.
        (4, 0, 4, StandbyState(), (4, 0, 0)),
        (4, 0, 1, StandbyState(serving=3), (4, 0, 0)),
    ],
)
def test_who_is_too_new_to_have_been_told_counts_as_a_standby(
    ready: int, standing: int, new: int, state: StandbyState, expected: tuple[int, int, int]
) -> None:
    seen = with_standbys(GroupSnapshot(1000.0, ready=ready), standing, new, state)
    assert expected == (seen.ready, seen.starting, seen.standby)


def test_replicas_are_new_for_a_time_after_their_first_work() -> None:
    old, new = record("r0", ReplicaState.READY, 46.0), record("r1", ReplicaState.READY, 44.0)
    late = replace(record("r2", ReplicaState.READY, 44.0), heartbeat_age_ms=2_000)
    assert 1 == newcomers(view(old, new, late, record("r3", ReplicaState.STANDBY, 1.0)), 45.0)


def test_a_fall_sends_the_newest_to_sleep_and_a_rise_wakes_the_oldest_of_them() -> None:
    seen = GroupSnapshot(1000.0, ready=5)
    order = order_standbys(LIMITS, seen, pool(5, 0), 3, StandbyState(serving=5), BOUNDS)
    assert (2, ("r3", "r4")) == (order.number, order.names)
    seen = GroupSnapshot(1015.0, ready=3, standby=2)
    order = order_standbys(LIMITS, seen, pool(3, 2), 4, order.made.state, BOUNDS)
    assert (1, ("r4",)) == (order.number, order.names)


def test_a_standby_that_failed_is_replaced_by_the_next_one() -> None:
    records = (record("r0", ReplicaState.READY, 9.0), record("r1", ReplicaState.DRAINING, 8.0))
    found = view(*records, record("r2", ReplicaState.STANDBY, 7.0))
    state = StandbyState(serving=2, standby=1, released=(990.0,))
    order = order_standbys(LIMITS, GroupSnapshot(1000.0, ready=1), found, 2, state, BOUNDS)
    assert () == order.names


def test_a_replica_beyond_both_numbers_sleeps_until_it_is_removed() -> None:
    """Otherwise a standby that goes would wake first."""
    order = order_standbys(
        StandbyLimits(), GroupSnapshot(1000.0, ready=2, standby=1), pool(2, 1), 2, StandbyState(serving=2, standby=1),
        BOUNDS)  # fmt: skip
    assert (0, ("r2",)) == (order.number, order.names)


def test_a_pool_without_standbys_gives_no_order() -> None:
    order = order_standbys(
        StandbyLimits(), GroupSnapshot(1000.0, ready=5), pool(5, 0), 3, StandbyState(serving=5), BOUNDS
    )
    assert (0, ()) == (order.number, order.names)


def test_no_standby_is_started_while_starts_fail() -> None:
    limits = StandbyLimits(least=2, most=2)
    seen = GroupSnapshot(1000.0, ready=3, failed_starts=1, last_failure_at=990.0)
    state = StandbyState(serving=3)
    assert 0 == order_standbys(limits, seen, pool(3, 0), 3, state, BOUNDS).number
    calm = replace(seen, failed_starts=0)
    assert 2 == order_standbys(limits, calm, pool(3, 0), 3, state, BOUNDS).number


def test_what_engines_that_cannot_sleep_say_is_not_taken_for_a_measurement() -> None:
    """A pool on GPUs has such replicas, too, from before it had standbys."""

    def known(state: StandbyState, *records: ReplicaRecord) -> float | None:
        order = order_standbys(LIMITS, GroupSnapshot(1.0, ready=2), view(*records), 2, state, BOUNDS)
        return order.made.state.wake_s

    sleepless = record("r0", ReplicaState.READY, 9.0, wake_s=0.0)
    sleepy = record("r1", ReplicaState.READY, 9.0, asleep=0.0)
    woken = record("r2", ReplicaState.READY, 9.0, asleep=0.0, wake_s=7.0)
    assert 0.0 == known(StandbyState(), sleepless)
    assert known(StandbyState(wake_s=0.0), sleepless, sleepy) is None
    assert 5.0 == known(StandbyState(wake_s=5.0), sleepless, sleepy)
    assert 7.0 == known(StandbyState(), sleepless, sleepy, woken)


def test_wake_ups_are_measured() -> None:
    found = view(*(record(f"r{n}", ReplicaState.READY, 9.0, wake_s=float(n)) for n in range(1, 11)))
    order = order_standbys(LIMITS, GroupSnapshot(1.0, ready=10), found, 10, StandbyState(), BOUNDS)
    assert 9.0 == order.made.state.wake_s


@pytest.mark.parametrize(
    ("serving", "most", "affordable", "price", "expected"),
    [(4, 10, None, 0.5, 10), (4, 10, 5, 0.5, 6), (4, 10, 5, 1.0, 5), (4, 10, 4, 0.0, 10), (6, 10, 4, 0.5, 6)],
)
def test_standbys_count_in_the_budget_by_their_price(
    serving: int, most: int, affordable: int | None, price: float, expected: int
) -> None:
    assert expected == most_with_standbys(serving, most, affordable, price)
