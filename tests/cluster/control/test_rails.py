"""The replica policy never goes beyond its rails, nor faster than they let it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.control.load_forecast import LoadRules
from cluster.control.rails import Move
from cluster.control.replica_rules import GroupBounds, SlowState
from cluster.control.snapshot import ClassDemand, GroupSnapshot
from cluster.control.step_model import Shape
from cluster.forecast.announced import AnnouncedRise, AnnouncedWork
from cluster.forecast.schedule import Scheduled
from penstock.models import RequestClass
from tests.cluster.control.groups import (
    BOUNDS,
    MODEL,
    POINT,
    RULES,
    changing,
    decide,
    group,
    interactive,
    long_ago,
    names,
    reason,
)


def test_old_values_freeze_removal_and_nothing_else() -> None:
    stale = {"age_s": 40.0}
    down = decide(POINT, BOUNDS, group(8, interactive(0.5), **stale), long_ago(1))

    assert 8 == down.replicas
    assert "stale" in names(down)
    assert ("values are 40 s old",) == down.alarms
    assert 8 == decide(POINT, BOUNDS, group(4, interactive(6.0), **stale), SlowState()).replicas


@pytest.mark.parametrize(
    ("failures", "ago", "expected"), [(1, 29, 2), (1, 31, 4), (4, 200, 2), (4, 250, 4), (20, 959, 2)]
)
def test_failed_starts_are_tried_again_later_and_later(failures: int, ago: float, expected: int) -> None:
    seen = group(2, interactive(3.0), failed_starts=failures, last_failure_at=10_000.0 - ago)
    decision = decide(POINT, BOUNDS, seen, SlowState())

    assert expected == decision.replicas
    assert (f"starts that failed in a row: {failures}",) == decision.alarms


def test_starts_that_fail_for_days_leave_a_pool_that_is_decided_on() -> None:
    seen = group(3, interactive(3.0), failed_starts=5_000, last_failure_at=9_990.0)
    decision = decide(POINT, BOUNDS, seen, SlowState())

    assert 3 == decision.replicas
    assert "the next in 950 s" in reason(decision, "failed_starts")


def test_one_minute_at_most_doubles_and_five_take_a_quarter() -> None:
    assert 20 == decide(POINT, BOUNDS, group(10, interactive(50.0)), SlowState()).replicas
    moved = SlowState(moves=(Move(9_970.0, 20),))
    assert 40 == decide(POINT, BOUNDS, group(10, interactive(50.0), starting=10), SlowState()).replicas
    again = decide(POINT, BOUNDS, group(10, interactive(50.0), starting=10), dataclasses.replace(moved, moves=(
        Move(9_900.0, 10, 10), Move(9_970.0, 20, 10),
    )))  # fmt: skip
    assert 20 == again.replicas
    assert "up_rate" in names(again)

    lowered = dataclasses.replace(long_ago(1), moves=(Move(9_800.0, 16), Move(9_900.0, 12)))
    down = decide(POINT, BOUNDS, group(12, interactive(0.5)), lowered)
    assert 12 == down.replicas
    assert "down_rate" in names(down)


@pytest.mark.slow
def test_longer_requests_may_double_a_group_with_every_tick() -> None:
    """They are no chance that a minute more would tell."""
    rules = (RULES, dataclasses.replace(RULES, load=LoadRules(lengths_s=0.0)))
    known, averaged = (
        [changing(prompts=20.0, batch=64.0, ticks=ticks, follow=True, rules=each).replicas for ticks in (1, 2, 3)]
        for each in rules
    )
    assert [12, 24, 40] == known
    assert [12, 12, 12] == averaged


def test_the_budget_and_the_bounds_come_last() -> None:
    point = dataclasses.replace(POINT, price_per_gpu_hour=2.0, budget_per_hour=12.0)

    assert 6 == decide(point, BOUNDS, group(5, interactive(7.0)), SlowState()).replicas
    assert 3 == decide(point, BOUNDS, group(3, interactive(7.0), gpus_per_replica=2), SlowState()).replicas
    assert 5 == decide(POINT, GroupBounds(1, 5), group(5, interactive(7.0)), SlowState()).replicas
    # A minimum is a promise, whatever it costs.
    assert 9 == decide(point, GroupBounds(9, 20), group(5, interactive(0.5)), SlowState()).replicas


@pytest.mark.parametrize("cold_start_s", [1e-9, 1.0, 7200.0])
def test_a_start_may_take_no_time_at_all(cold_start_s: float) -> None:
    made = decide(POINT, BOUNDS, group(2, interactive(1.0), cold_start_s=cold_start_s), long_ago(2))

    assert 2 == made.replicas


demands = st.lists(
    st.builds(
        ClassDemand, st.sampled_from(RequestClass), st.floats(0, 1e4),
        st.builds(Shape, st.floats(1, 1e5), st.floats(0, 1e4)), st.integers(0, 10**6), st.floats(0, 1e4),
        st.one_of(st.none(), st.floats(0, 1e5)),
    ), max_size=3,
).map(tuple)  # fmt: skip
groups = st.builds(
    GroupSnapshot, at=st.just(10_000.0), ready=st.integers(0, 120), starting=st.integers(0, 20), demands=demands,
    model=st.one_of(st.none(), st.just(MODEL)), running=st.floats(0, 1e5), waiting=st.floats(0, 1e6),
    kv_usage=st.floats(0, 1), age_s=st.floats(0, 100), failed_starts=st.integers(0, 9),
    last_failure_at=st.one_of(st.none(), st.floats(0, 10_000)), attainment=st.one_of(st.none(), st.floats(0, 1)),
    cold_start_s=st.sampled_from([1e-9, 1.0, 180.0, 7200.0]), tick_s=st.sampled_from([0.0, 15.0, 600.0]),
    standby=st.integers(0, 2), scheduled=st.one_of(st.none(), st.builds(Scheduled, st.integers(1, 200), st.just("s"))),
    announced=st.one_of(st.none(), st.builds(AnnouncedWork, st.floats(0, 50), st.floats(0, 50), st.booleans(),
        st.lists(st.builds(AnnouncedRise, st.floats(1, 1e4), st.floats(0, 500), st.floats(0, 500))).map(tuple))),
)  # fmt: skip


@pytest.mark.slow
@given(seen=groups, smallest=st.integers(0, 5), size=st.integers(0, 50))
def test_no_decision_leaves_the_bounds(seen: GroupSnapshot, smallest: int, size: int) -> None:
    bounds = GroupBounds(smallest, smallest + size)
    for state in (SlowState(), long_ago(1)):
        decision = decide(POINT, bounds, seen, state)

        assert bounds.smallest <= decision.replicas <= bounds.largest
        assert all(bounds.smallest <= other.replicas <= bounds.largest for other in decision.counterfactuals)
        assert decision.steps
