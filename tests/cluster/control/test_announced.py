"""Replicas for announced load are ready when it begins, although growth is bounded."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st

from cluster.announced.belief import Announced, Belief
from cluster.announced.load import AnnouncedLoad
from cluster.control.rails import RailRules, growth_time_s
from cluster.control.replica_rules import GroupBounds, SlowRules, SlowState
from cluster.control.sizing import planned_fill
from cluster.control.snapshot import GroupSnapshot
from cluster.control.step_model import Shape
from cluster.hindsight.fluid import FluidPool, FluidRules, FluidView, LoadTick, Wanted
from cluster.hindsight.policy import PolicyScaler, ReplayedPool
from tests.cluster.control.groups import POINT, group

NINE = datetime(2026, 11, 27, 9, tzinfo=UTC).timestamp()
WORK_S = 1.0
"""Replica-seconds of a request."""


class AnnouncedPool(PolicyScaler):
    """The policy on a pool to which load is announced from nine on."""

    def announce(self, rate: float) -> None:
        """Announce so many requests per second."""
        self.loads = [AnnouncedLoad("a", "acme", round(1000 * NINE), round(1000 * NINE) + 3_600_000, rate)]
        self.seen = list[FluidView]()

    def wanted(self, view: FluidView) -> Wanted:
        self.seen.append(view)
        return super().wanted(view)

    def _ahead(self, seen: GroupSnapshot, view: FluidView) -> GroupSnapshot:
        announced = Announced(view.clock, self.loads, Shape(1, 1), lambda _: WORK_S)
        start_s = seen.cold_start_s + seen.tick_s
        growth_s = growth_time_s(2 * self.pool.bounds.largest, seen, self.state.moves, self.pool.rules.rails)
        return dataclasses.replace(
            seen, announced=announced.foresee(Belief(), start_s, start_s + seen.cold_start_s + growth_s)
        )


@given(
    before=st.integers(1, 20),
    rate=st.floats(1.0, 300.0),
    cold_start_s=st.floats(10.0, 900.0),
    tick_s=st.floats(5.0, 60.0),
    phase=st.floats(0.0, 0.99),
    up_window_s=st.floats(15.0, 600.0),
    largest=st.integers(20, 1000),
)
@example(before=1, rate=13.0, cold_start_s=10.0, tick_s=24.0, phase=0.0, up_window_s=398.0, largest=20)
def test_all_are_ready_when_the_load_begins(
    before: int, rate: float, cold_start_s: float, tick_s: float, phase: float, up_window_s: float, largest: int
) -> None:
    rules = SlowRules(rails=RailRules(up_window_s=up_window_s))
    scaler = AnnouncedPool(POINT, ReplayedPool(GroupBounds(before, largest), rules), cold_start_s, 10.0)
    scaler.announce(rate)
    needed = min(largest, math.ceil(rate * WORK_S / planned_fill(rate * WORK_S, SlowState(), rules) - 1e-9))
    growth_s = growth_time_s(needed, group(before, tick_s=tick_s), (), rules.rails)
    fluid = FluidPool(FluidRules(cold_start_s, 10.0), before)
    for number in range(-math.ceil((cold_start_s + growth_s) / tick_s) - 8, 2):
        clock = NINE + (number + phase) * tick_s
        fluid.tick(LoadTick(clock, tick_s, 0.0, 0.0, clock), scaler)

    assert max(before, needed) == next(view.ready for view in scaler.seen if view.clock >= NINE)
    # None is ordered sooner than growth and start need.
    early = [view for view in scaler.seen if view.clock < NINE - cold_start_s - growth_s - tick_s - 1e-3]
    assert {before} == {view.ready + view.starting for view in early}


def test_growth_takes_the_windows_that_its_bound_lets_pass() -> None:
    """2, then 6, 12, 24 and 40."""
    seen = group(2, tick_s=15.0)
    times = [growth_time_s(number, seen, (), RailRules()) for number in (1, 2, 6, 7, 12, 13, 40, 48, 49)]

    assert [0, 0, 0, 75, 75, 150, 225, 225, 300] == times
