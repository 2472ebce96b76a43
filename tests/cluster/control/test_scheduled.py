"""Scheduled replicas are ready when their time begins, whatever the step, the start, the ticks and the growth."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from datetime import UTC, datetime, time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.control.rails import Move, RailRules
from cluster.control.replica_rules import GroupBounds, SlowRules, SlowState
from cluster.forecast.schedule import Scheduled, ScheduledTime
from cluster.hindsight.fluid import FluidPool, FluidRules, FluidView, LoadTick, Wanted
from cluster.hindsight.policy import PolicyScaler, ReplayedPool
from tests.cluster.control.groups import POINT, decide, group, interactive, names

NINE = datetime(2026, 11, 27, 9, tzinfo=UTC).timestamp()


def views(
    before: int, due: int, cold_start_s: float, tick_s: float, phase: float, rails: RailRules
) -> Sequence[FluidView]:
    """Return what is seen at each tick around nine of a pool that is scheduled to have so many replicas from then on.

    Args:
        before: replicas that it has before.
        due: replicas of the schedule.
        cold_start_s: duration of a start.
        tick_s: seconds between two ticks.
        phase: part of a tick by which no tick is at nine.
        rails: bounds of growth.
    """
    office = ScheduledTime(time(9), time(17), frozenset(range(7)), "UTC", due)
    pool = ReplayedPool(GroupBounds(before, 1000), SlowRules(rails=rails), (office,))
    scaler, seen = PolicyScaler(POINT, pool, cold_start_s, 10.0), list[FluidView]()

    class Watched:
        def wanted(self, view: FluidView) -> Wanted:
            seen.append(view)
            return scaler.wanted(view)

    fluid = FluidPool(FluidRules(cold_start_s, 10.0), before)
    first = -math.ceil(cold_start_s / tick_s) - 8
    for number in range(first, 4):
        clock = NINE + (number + phase) * tick_s
        fluid.tick(LoadTick(clock, tick_s, 0.3 * before * tick_s, tick_s, clock), Watched())
    return seen


@given(
    before=st.integers(1, 60),
    more=st.integers(1, 300),
    cold_start_s=st.floats(0.5, 900.0),
    tick_s=st.floats(5.0, 120.0),
    phase=st.floats(0.0, 0.99),
    up_window_s=st.floats(1.0, 3600.0),
)
def test_all_are_ready_when_their_time_begins(
    before: int, more: int, cold_start_s: float, tick_s: float, phase: float, up_window_s: float
) -> None:
    due = before + more
    seen = views(before, due, cold_start_s, tick_s, phase, RailRules(up_window_s=up_window_s))

    assert {due} == {view.ready for view in seen if view.clock >= NINE}
    # And none is ordered two looks sooner than it must.
    early = [view for view in seen if view.clock < NINE - cold_start_s - tick_s - 1e-3]
    assert {before} == {view.ready + view.starting for view in early}


def test_forty_replicas_after_two() -> None:
    seen = views(2, 40, 180.0, 15.0, 0.5, RailRules())

    assert {(2, 0), (2, 38), (40, 0)} == {(each.ready, each.starting) for each in seen}
    assert 40 == next(each.ready for each in seen if each.clock >= NINE)


def test_what_the_load_asks_for_beyond_a_schedule_keeps_to_the_rate() -> None:
    seen = dataclasses.replace(group(10, interactive(100.0)), scheduled=Scheduled(15, "office hours"))
    fast = decide(POINT, GroupBounds(1, 500), seen, SlowState())

    assert 20 == fast.replicas
    assert "up_rate" in names(fast)


@pytest.mark.parametrize(
    ("more", "replicas", "rail"),
    [
        ({"failed_starts": 1, "last_failure_at": 9_990.0}, 2, "failed_starts"),
        ({"gpus_per_replica": 2}, 6, "budget"),
        ({}, 12, "budget"),
    ],
)
def test_failed_starts_and_the_budget_bound_a_schedule(more: dict[str, float], replicas: int, rail: str) -> None:
    point = dataclasses.replace(POINT, price_per_gpu_hour=1.0, budget_per_hour=12.0)
    seen = dataclasses.replace(group(2, interactive(1.0), **more), scheduled=Scheduled(40, "office hours"))
    bounded = decide(point, GroupBounds(1, 500), seen, SlowState())

    assert replicas == bounded.replicas
    assert rail in names(bounded)


@pytest.mark.parametrize(
    ("work", "due", "smallest", "replicas", "patience"),
    [(1.0, 15, 1, 15, 1.0), (1.0, None, 15, 15, 1.0), (12.0, None, 1, 14, 2.0), (12.0, 40, 1, 40, 2.0)],
)
def test_only_the_load_undoes_a_removal(
    work: float, due: int | None, smallest: int, replicas: int, patience: float
) -> None:
    """Otherwise the removals after a time of the schedule would look back for twice as long, or longer."""
    seen = group(10, interactive(work))
    seen = dataclasses.replace(seen, scheduled=None if due is None else Scheduled(due, "office hours"))
    state = SlowState(moves=(Move(seen.at - 600.0, 10, 12),), regretted_at=seen.at - 1_200.0)
    decision = decide(POINT, GroupBounds(smallest, 500), seen, state)

    assert replicas == decision.replicas
    assert patience == decision.state.patience
    assert (patience > 1.0) == (decision.state.regretted_at == seen.at)
