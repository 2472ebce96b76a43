"""Recorded decisions as a load, and what the policy would have made of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest

from cluster.autoscaler.own_settings import slow_rules
from cluster.control.bursts.hold import HoldRules
from cluster.control.load_forecast import LoadRules
from cluster.control.replica_rules import GroupBounds, SlowRules
from cluster.hindsight.fluid import FluidRules, Given, LoadTick, Wanted, replay
from cluster.hindsight.history import History, history_of
from cluster.hindsight.policy import ReplayedPool
from cluster.hindsight.review import compare, expected
from cluster.settings import AutoscaleSettings
from penstock.client import ClassDemand, Decision
from penstock.models import RequestClass
from penstock.values.slo import ClassSlo, OperatingPoint
from penstock.values.steps import Relief
from tests.cluster.hindsight.loads import TICK_S, WORK_S, changing

POINT = OperatingPoint(interactive=ClassSlo(4.0))
BOUNDS = GroupBounds(1, 60)
RULES = SlowRules(load=LoadRules(check_s=0.0), hold=HoldRules(check_s=0.0))
POOL = ReplayedPool(BOUNDS, RULES)
WINDOW_S = 60.0
LIVES_S = 12.0


def recorded(ticks: Sequence[LoadTick], replicas: Sequence[int]) -> list[Decision]:
    """Make the decisions that an autoscaler would record of a load, with so many replicas running."""
    work = requests = 0.0
    found = []
    for place, tick in enumerate(ticks):
        part = 1.0 - math.exp(-tick.seconds / WINDOW_S)
        work += part * (tick.work / tick.seconds - work)
        requests += part * (tick.requests / tick.seconds - requests)
        demand = ClassDemand(RequestClass.INTERACTIVE, requests, 100.0, 0.0, 100.0, 0, 0.0)
        count = replicas[place]
        found.append(
            Decision(
                number=place + 1, at_ms=round(tick.at * 1000), mode="advisory", leader="a", fence=1,
                replicas_before=count, replicas=count, needed=count, relief=Relief.NONE, reason="", steps=(),
                counterfactuals=(), alarms=(), ready=count, starting=0, draining=0, running=LIVES_S * requests,
                waiting=0.0, kv_usage=0.5, age=0.0, cold_start=120.0, failed_starts=0, attainment=0.98,
                demands=(demand,), work=work, gpus_per_replica=2,
            )
        )  # fmt: skip
    return found


def swing(hours: float = 6.0) -> list[LoadTick]:
    return changing(lambda at: 1.5 + math.sin(2 * math.pi * at / 14_400.0), hours * 3600.0, seed=5)


def history(ticks: Sequence[LoadTick], replicas: int = 14) -> History:
    return history_of(recorded(ticks, [replicas] * len(ticks)), POINT, WINDOW_S)


def test_decisions_tell_the_load_that_came() -> None:
    ticks = swing(1.0)
    found = history(ticks)

    assert len(ticks) - 1 == len(found.ticks)
    assert pytest.approx([each.work for each in ticks[1:]], abs=1e-6) == [each.work for each in found.ticks]
    assert pytest.approx([each.requests for each in ticks[1:]], abs=1e-6) == [each.requests for each in found.ticks]
    assert pytest.approx(LIVES_S) == found.lives_s
    assert (120.0, 2, 0.0) == (found.cold_start_s, found.gpus_per_replica, found.left_out_s)
    assert RequestClass.INTERACTIVE is found.request_class
    assert pytest.approx(0.98) == found.measured
    # Half of the time to the first token may be a wait, and batches hold some work.
    assert FluidRules(120.0, 2.0 + found.lives_s / 12, WINDOW_S) == found.fluid(POINT, WINDOW_S)


def test_time_without_figures_is_left_out() -> None:
    made = recorded(swing(1.0), [14] * 240)
    made[100] = dataclasses.replace(made[100], work=None)
    del made[150:170]
    found = history_of(made, POINT, WINDOW_S)

    assert 240 - 20 - 1 - 3 == len(found.ticks)
    assert pytest.approx((2 + 21) * TICK_S) == found.left_out_s


def test_each_step_of_the_dial_costs_more_and_attains_more() -> None:
    found = history(swing())
    steps = [
        expected(found, POINT, ReplayedPool(BOUNDS, slow_rules(AutoscaleSettings(headroom=name))))
        for name in ("less", "balanced", "more")
    ]
    hours, attained = [each.hours_a_day for each in steps], [each.attainment for each in steps]

    assert sorted(set(hours)) == hours
    assert sorted(attained) == attained
    assert attained[0] < attained[2]
    for each in steps:
        assert each.low is not None
        assert each.high is not None
        assert each.low <= each.attainment <= each.high


def test_a_short_load_tells_no_range() -> None:
    found = expected(history(swing(2.0)), POINT, POOL)
    assert (None, None) == (found.low, found.high)


def test_a_fixed_number_is_compared_with_the_policy() -> None:
    found = compare(history(swing(), replicas=16), POINT, POOL)

    assert pytest.approx(16 * 24.0) == found.ran.hours_a_day
    assert 0.0 == found.ran.reversals_a_day
    assert pytest.approx(5.5, abs=0.01) == found.hours
    assert pytest.approx(found.ran.hours_a_day - found.ours.hours_a_day) == found.hours_saved_a_day
    # A number for the peak of a swing is too many for most of the time.
    assert found.hours_saved_a_day > 24.0
    assert pytest.approx(2 * 3.0 * found.hours_saved_a_day) == found.money_saved_a_day(3.0)
    few = compare(history(swing(), replicas=7), POINT, POOL)
    assert few.hours_saved_a_day < 0.0
    assert few.ran.attainment < 0.9 < few.ours.attainment


def test_a_fluid_pool_serves_what_it_can() -> None:
    rules = FluidRules(cold_start_s=30.0, lies_s=10.0, capacity=1.0)
    ticks = [LoadTick(15.0, 15.0, 60.0, 15.0), LoadTick(30.0, 15.0, 0.0, 0.0), LoadTick(45.0, 15.0, 0.0, 0.0)]
    run = replay(ticks, Given([Wanted(2)]), Wanted(2), rules)

    # Of 60 replica-seconds 30 are done and 20 may lie there.
    assert [10.0, 0.0, 0.0] == [each.missed for each in run.ticks]
    assert pytest.approx(1.0 - 10.0 / 60.0) == run.attainment
    assert pytest.approx(2 * 45 / 3600) == run.hours
    assert 1.0 == replay(ticks, Given([Wanted(4)]), Wanted(4), rules).attainment


class Orders:
    """A rule that orders and removes at once."""

    def __init__(self, *counts: int) -> None:
        self.counts = list(counts)
        self.ready: list[int] = []

    def wanted(self, view: object) -> Wanted:
        self.ready.append(view.ready)  # type: ignore[attr-defined]
        return Wanted(self.counts.pop(0))


def test_replicas_start_after_a_cold_start_and_turns_count() -> None:
    rules = FluidRules(cold_start_s=30.0, lies_s=10.0)
    orders = Orders(3, 3, 3, 1, 1, 2)
    run = replay([LoadTick(15.0 * n, 15.0, WORK_S, 1.0) for n in range(1, 7)], orders, Wanted(1), rules)

    assert [1, 1, 3, 3, 1, 1] == orders.ready
    assert [1, 3, 3, 3, 1, 1] == [each.replicas for each in run.ticks]
    assert 2 == run.reversals
