"""The replica policy: how many replicas, and why."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable

import pytest

from cluster.control.load_forecast import LoadRules, Need, growth, steady_work
from cluster.control.replica_rules import GroupBounds, SlowState
from cluster.control.snapshot import ClassDemand
from cluster.control.step_model import Shape, StepModel
from penstock.models import RequestClass
from penstock.values.slo import OperatingPoint
from penstock.values.steps import Counterfactual
from tests.cluster.control.groups import (
    BOUNDS,
    MODEL,
    POINT,
    RULES,
    SHAPE,
    TICK_S,
    changing,
    decide,
    group,
    interactive,
    long_ago,
    names,
    reason,
    seconds_per_request,
)

LOAD_OF_18 = 15.3
"""Replica-seconds per second that call for 18 replicas."""

# --- up ---------------------------------------------------------------------------------------------------------------


def test_replicas_are_planned_to_be_three_quarters_full() -> None:
    assert 4 == decide(POINT, BOUNDS, group(2, interactive(3.0)), SlowState()).replicas


def test_longer_prompts_at_the_same_rate_need_more() -> None:
    """A count of requests would see no change."""
    longer = dataclasses.replace(interactive(3.0), shape=Shape(prompt_tokens=2000, output_tokens=200))
    short = decide(POINT, BOUNDS, group(3, interactive(3.0)), SlowState())
    long = decide(POINT, BOUNDS, group(3, longer), SlowState())

    assert long.needed > 2 * short.needed


def test_load_that_has_faded_is_told_as_none() -> None:
    """Averages of what arrives never end."""
    decision = decide(POINT, BOUNDS, group(1, interactive(1e-17)), SlowState())

    assert reason(decision, "demand").startswith("0 replica-seconds arrive")
    assert [0.0] == [step.value for step in decision.steps if step.name == "demand"]
    assert not [step for step in decision.steps if "e-" in step.reason]


def test_replicas_that_start_count() -> None:
    decision = decide(POINT, BOUNDS, group(1, interactive(3.0), starting=3), SlowState())

    assert 4 == decision.replicas
    assert "up" not in names(decision)


def test_large_groups_are_planned_to_be_fuller_than_small_ones() -> None:
    """The scatter of their load grows with the root only."""

    def fullness(replicas: float) -> float:
        return replicas / decide(POINT, BOUNDS, group(1, interactive(replicas)), SlowState()).needed

    assert fullness(1.0) < fullness(3.0) < fullness(30.0) <= 0.95


def test_a_load_a_little_over_the_plan_adds_nothing() -> None:
    assert 4 == decide(POINT, BOUNDS, group(4, interactive(3.55)), SlowState()).replicas
    assert 5 == decide(POINT, BOUNDS, group(4, interactive(3.85)), SlowState()).replicas


def test_what_has_piled_up_fills_what_is_there_first() -> None:
    queued = round(100.0 / seconds_per_request())
    seen = group(4, interactive(3.0, queued=queued, oldest_wait_s=1e6))

    assert 4 == decide(POINT, BOUNDS, seen, SlowState()).replicas
    assert 5 == decide(POINT, BOUNDS, dataclasses.replace(seen, cold_start_s=30.0), SlowState()).replicas


def test_what_has_piled_up_is_worked_off_in_a_cold_start_and_named_in_the_counterfactual() -> None:
    queued = round(600.0 / seconds_per_request())
    seen = group(4, interactive(3.0, queued=queued, oldest_wait_s=1e6))
    decision = decide(POINT, BOUNDS, seen, SlowState())

    assert 7 == decision.replicas
    assert (Counterfactual("backlog", 4),) == decision.counterfactuals
    assert "4 without the backlog term" == str(decision.counterfactuals[0])


def test_without_the_backlog_a_load_a_little_over_the_plan_adds_nothing() -> None:
    queued = round(600.0 / seconds_per_request())
    decision = decide(POINT, BOUNDS, group(4, interactive(3.55, queued=queued, oldest_wait_s=1e6)), SlowState())

    assert 8 == decision.replicas
    assert (Counterfactual("backlog", 4),) == decision.counterfactuals


def test_growth_that_a_backlog_asks_for_anyway_is_no_counterfactual() -> None:
    """What has piled up takes what is planned for growth first; without growth it asks for the same replicas."""
    needs = tuple(Need(10_000.0 - TICK_S * n, 3.0 - 0.02 * n, 4) for n in range(40, 0, -1))
    grows = decide(POINT, BOUNDS, group(4, interactive(3.0)), SlowState(needs=needs))
    queued = round(600.0 / seconds_per_request())
    seen = group(4, interactive(3.0, queued=queued, oldest_wait_s=1e6))
    decision = decide(POINT, BOUNDS, seen, SlowState(needs=needs))

    assert "growth" in names(grows)
    assert "growth" in names(decision)
    assert 7 == decision.replicas
    assert ["backlog"] == [each.without for each in decision.counterfactuals]


def test_a_line_within_the_slo_is_no_backlog() -> None:
    decision = decide(POINT, BOUNDS, group(4, interactive(3.0, queued=50, oldest_wait_s=0.5)), SlowState())

    assert "backlog" not in names(decision)


def test_batch_work_calls_for_replicas_only_to_meet_a_deadline() -> None:
    waits = ClassDemand(RequestClass.BATCH, 0.0, SHAPE, queued=100_000)
    due = dataclasses.replace(waits, deadline_s=100_000 * seconds_per_request() / 4)

    assert 1 == decide(POINT, BOUNDS, group(1, waits), SlowState()).needed
    assert 5 == decide(POINT, BOUNDS, group(1, due), SlowState()).replicas


def test_a_deadline_that_no_new_replica_can_meet_calls_for_none() -> None:
    late = ClassDemand(RequestClass.BATCH, 0.0, SHAPE, queued=100_000, deadline_s=100.0)

    assert 1 == decide(POINT, BOUNDS, group(1, late), SlowState()).needed


def test_what_fills_the_room_that_is_left_makes_no_group_look_full() -> None:
    job = ClassDemand(RequestClass.BATCH, 0.0, SHAPE, queued=1_000, deadline_s=1e6)
    seen = dataclasses.replace(group(4, interactive(2.0), job), running=4 * 64.0, kv_usage=0.95)
    decision = decide(POINT, BOUNDS, seen, SlowState())

    assert 3 >= decision.needed
    assert "running" not in names(decision)


def test_a_jump_counts_at_once_where_it_is_more_than_the_chance_of_few_requests() -> None:
    needs = tuple(Need(15.0 * tick, 10.0, 1) for tick in range(12))

    def steady(work: float, requests: float) -> float:
        return steady_work(work, requests, needs, 0.0, LoadRules())

    assert 14.0 == steady(14.0, requests=50.0)
    assert pytest.approx((11 * 10 + 14) / 12) == steady(14.0, requests=0.5)
    assert 26.0 == steady(26.0, requests=0.5)


def test_growth_is_planned_for_where_it_is_a_trend() -> None:
    now = TICK_S * 60

    def grown(work: Callable[[int], float], rules: LoadRules | None = None) -> float:
        needs = tuple(Need(TICK_S * n, work(n), 1) for n in range(60))
        return growth(needs, work(60), now, 180.0, rules or LoadRules())

    assert pytest.approx(1.0 + (180 + 60) / TICK_S / 70) == grown(lambda n: 10.0 + n)
    assert 1.5 == grown(lambda n: max(0.1, n - 40.0))
    assert 1.0 == grown(lambda n: 70.0 - n)
    assert 1.0 == grown(lambda n: 5.0)
    # Chance, and one jump.
    scatter = random.Random(1)
    assert 1.0 == grown(lambda n: scatter.gauss(10.0, 1.0))
    assert 1.0 == grown(lambda n: 2.0 if n < 52 else 6.0)
    assert 1.0 == grown(lambda n: 10.0 + n, LoadRules(trend_errors=0.0))


def test_the_batch_that_fast_loops_hold_is_what_a_replica_does() -> None:
    seen = group(4, interactive(3.0))
    whole = decide(POINT, BOUNDS, seen, SlowState()).needed
    held = decide(POINT, BOUNDS, dataclasses.replace(seen, live_batch=8.0), SlowState()).needed
    assert held > whole


def test_steps_that_prompts_fill_do_less_than_a_batch_of_many() -> None:
    demand = ClassDemand(RequestClass.INTERACTIVE, 20.0, dataclasses.replace(SHAPE, prompt_tokens=8000))
    free, full = group(4, demand, live_batch=64.0), group(4, demand, live_batch=64.0, step_tokens=1024)

    assert decide(POINT, BOUNDS, full, SlowState()).needed > 1.1 * decide(POINT, BOUNDS, free, SlowState()).needed
    # Those that wait in the batch for their prompts have their places there all the same.
    running = dataclasses.replace(full, running=4 * 64.0)
    assert decide(POINT, BOUNDS, running, SlowState()).needed == decide(POINT, BOUNDS, full, SlowState()).needed


def lately(*works: float) -> tuple[Need, ...]:
    """Make the needs of the last ticks, the newest last, after an hour of the first."""
    whole = [works[0]] * 200 + list(works)
    return tuple(Need(10_000.0 - TICK_S * (len(whole) - n), work, 1) for n, work in enumerate(whole))


def test_work_that_scatters_is_averaged_over_a_cold_start() -> None:
    state = SlowState(needs=lately(*[3.0, 2.6] * 6))
    seen = group(4, interactive(3.4))
    usual = decide(POINT, BOUNDS, seen, state)
    fresh = decide(POINT, BOUNDS, seen, state, dataclasses.replace(RULES, load=LoadRules(steady_most_s=0.0)))

    assert 4 == usual.needed
    assert "3.4 came lately" in reason(usual, "steady")
    assert 5 == fresh.needed


def test_work_that_scatters_is_averaged_too_while_something_has_piled_up() -> None:
    """With few replicas for some time its chances would be added up, one tick after the other."""
    queued = round(20.0 / seconds_per_request())
    seen = group(4, interactive(3.4, queued=queued, oldest_wait_s=1e6))
    decision = decide(POINT, BOUNDS, seen, SlowState(needs=lately(*[3.0, 2.6] * 6)))

    assert "backlog" in names(decision)
    assert "3.4 came lately" in reason(decision, "steady")
    assert 4 == decision.needed


def test_work_that_jumps_counts_at_once() -> None:
    decision = decide(POINT, BOUNDS, group(4, interactive(4.0)), SlowState(needs=lately(3.0)))

    assert "steady" not in names(decision)
    assert 6 == decision.needed


def test_a_burst_counts_before_the_average_knows() -> None:
    kept = math.exp(-2 * TICK_S / 60.0)
    now = kept * 3.0 + (1 - kept) * 9.0
    seen = group(4, interactive(now))
    decision = decide(POINT, BOUNDS, seen, SlowState(needs=lately(3.0, 3.0)))

    assert pytest.approx((now + 9.0) / 2) == next(step.value for step in decision.steps if step.name == "burst")
    assert decision.counterfactuals[0].without == "burst"
    assert decision.counterfactuals[0].replicas < decision.replicas
    # So few requests may be chance.
    heavy = dataclasses.replace(SHAPE, output_tokens=200_000)
    few = ClassDemand(RequestClass.INTERACTIVE, now / MODEL.gpu_seconds(heavy, 256.0), heavy)
    assert "burst" not in names(decide(POINT, BOUNDS, group(4, few), SlowState(needs=lately(3.0, 3.0))))


@pytest.mark.slow
def test_longer_requests_count_before_the_average_knows() -> None:
    decision = changing(prompts=3.0, batch=64.0)

    assert "lengths" in names(decision)
    without = {each.without: each.replicas for each in decision.counterfactuals}
    assert without["lengths"] < decision.replicas


@pytest.mark.slow
def test_smaller_batches_are_no_longer_requests() -> None:
    assert "lengths" not in names(changing(prompts=1.0, batch=40.0))


@pytest.mark.slow
@pytest.mark.parametrize("error", [0.7, 1.4])
def test_a_wrong_model_is_found_out_by_what_runs(error: float) -> None:
    """Work is as much as in truth, however far the model is off."""
    wrong = StepModel(MODEL.a * error, MODEL.b * error, MODEL.g * error)
    demand = interactive(6.0)
    batch = 40.0
    truly = demand.rate * SHAPE.output_tokens * MODEL.itl(batch, SHAPE.mix)
    state, have = SlowState(), round(truly / batch)
    needed = []
    for tick in range(120):
        seen = dataclasses.replace(group(have, demand, running=truly), at=tick * TICK_S, model=wrong)
        decision = decide(OperatingPoint(), BOUNDS, seen, state)
        state = decision.state
        needed.append(next(step.value for step in decision.steps if step.name == "demand"))

    assert pytest.approx(1 / error, rel=0.05) == state.check.factor
    assert pytest.approx(needed[0] / error, rel=0.1) == needed[-1]
    # A full group says nothing of the load.
    full = dataclasses.replace(group(have, demand, running=10.0, waiting=500.0), at=1e5, model=wrong)
    assert state.check == decide(OperatingPoint(), BOUNDS, full, state).state.check


def test_what_runs_keeps_its_places() -> None:
    crowded = group(9, interactive(1.5), running=1600.0)
    decision = decide(OperatingPoint(), BOUNDS, crowded, long_ago(2))

    assert 9 == decision.replicas
    assert "1600 sequences run" in reason(decision, "running")


# --- down -------------------------------------------------------------------------------------------------------------


def test_removal_looks_back_three_cold_starts_and_takes_a_quarter() -> None:
    seen = group(12, interactive(1.5))
    state = long_ago(needed=2)
    burst = [Need(9_700.0 + TICK_S * n, 8.0, 11) for n in range(8)]
    busy = dataclasses.replace(state, needs=(*state.needs[:-20], *burst, *state.needs[-12:]))
    chance = dataclasses.replace(state, needs=(*state.needs[:-20], burst[0], *state.needs[-19:]))

    assert 9 == decide(POINT, BOUNDS, seen, state).replicas
    assert 12 == decide(POINT, BOUNDS, seen, busy).replicas
    assert 9 == decide(POINT, BOUNDS, seen, chance).replicas
    assert 9 == decide(POINT, BOUNDS, dataclasses.replace(seen, cold_start_s=30.0), busy).replicas
    assert 12 == decide(POINT, BOUNDS, seen, SlowState()).replicas


def test_a_few_too_many_go_after_half_an_hour() -> None:
    seen = group(20, interactive(LOAD_OF_18))
    state = long_ago(needed=18, work=LOAD_OF_18)
    lately_two = dataclasses.replace(
        state, needs=tuple(dataclasses.replace(need, replicas=18 if need.at > 9_400.0 else 20) for need in state.needs)
    )
    steady = decide(POINT, BOUNDS, seen, state)
    young = dataclasses.replace(state, needs=state.needs[-50:])

    assert (18, 18) == (steady.needed, steady.replicas)
    assert "18 were enough for 95% of the last 1800 s" == reason(steady, "down")
    assert 20 == decide(POINT, BOUNDS, seen, lately_two).replicas
    assert 20 == decide(POINT, BOUNDS, seen, young).replicas
    # One of nineteen is what chance brings at any time.
    assert 19 == decide(POINT, BOUNDS, group(19, interactive(LOAD_OF_18)), state).replicas


def test_more_than_a_seventh_too_many_go_after_the_look_back() -> None:
    state = long_ago(needed=18, work=LOAD_OF_18)
    young = dataclasses.replace(state, needs=state.needs[-50:])

    assert 21 == decide(POINT, BOUNDS, group(21, interactive(LOAD_OF_18)), young).replicas
    more = decide(POINT, BOUNDS, group(22, interactive(LOAD_OF_18)), young)
    assert "18 were enough for 95% of the last 300 s" == reason(more, "down")


@pytest.mark.slow
def test_removal_never_waits_for_more_than_is_remembered() -> None:
    """Three cold starts of an hour are more than two hours, and so is a look-back that was doubled again and again."""
    rules = dataclasses.replace(RULES, look_back_s=86_400.0)
    state = SlowState(patience=6.0, active_at=10_000.0)
    found = []
    for tick in range(501):
        # Ticks come when they come.
        at = 10_000.0 + TICK_S * tick + tick % 3
        seen = dataclasses.replace(group(12, interactive(1.5), cold_start_s=3_600.0), at=at)
        decision = decide(POINT, BOUNDS, seen, state, rules)
        found.append(decision.replicas)
        state = dataclasses.replace(decision.state, moves=())

    assert [12] * 480 == found[:480]
    assert [9] * 20 == found[-20:]
    assert "of the last 7200 s" in reason(decision, "down")


def test_nothing_is_removed_while_replicas_start() -> None:
    decision = decide(POINT, BOUNDS, group(8, interactive(1.5), starting=2), long_ago(2))

    assert 10 == decision.replicas
    assert "2 replicas are starting" == reason(decision, "keep")


def test_removal_is_tried_out_first() -> None:
    full = dataclasses.replace(group(4, interactive(1.5)), kv_usage=0.8)
    decision = decide(POINT, BOUNDS, full, long_ago(2))

    assert 4 == decision.replicas
    assert "KV caches would be 107% full" in reason(decision, "removal")


def test_a_group_goes_to_zero_only_where_allowed_and_after_a_long_idle_time() -> None:
    idle = dataclasses.replace(group(1), kv_usage=0.0)
    state = dataclasses.replace(long_ago(0, work=0.0), active_at=9_000.0)

    assert 0 == decide(POINT, GroupBounds(0, 4), idle, state).replicas
    assert 1 == decide(POINT, GroupBounds(1, 4), idle, state).replicas
    assert 1 == decide(POINT, GroupBounds(0, 4), idle, dataclasses.replace(state, active_at=9_500.0)).replicas
    asleep = dataclasses.replace(idle, ready=0, demands=(interactive(0.01, queued=1),))
    assert 1 == decide(POINT, GroupBounds(0, 4), asleep, state).replicas


# --- without a model, and what else is said ---------------------------------------------------------------------------


def test_without_a_model_waiting_requests_and_kv_usage_decide() -> None:
    blind = dataclasses.replace(group(4, interactive(3.0)), model=None)

    assert 8 == decide(POINT, BOUNDS, dataclasses.replace(blind, waiting=32.0), SlowState()).replicas
    assert 5 == decide(POINT, BOUNDS, dataclasses.replace(blind, kv_usage=0.95), SlowState()).replicas
    assert 4 == decide(POINT, BOUNDS, dataclasses.replace(blind, kv_usage=0.8), SlowState()).replicas
    assert "no step model" in reason(decide(POINT, BOUNDS, blind, SlowState()), "fallback")


@pytest.mark.slow
def test_a_noisy_steady_load_moves_nothing_to_and_fro() -> None:
    draw = random.Random(4)
    state, have, changes = SlowState(), 6, []
    for tick in range(960):
        seen = dataclasses.replace(
            group(have, interactive(4.0 * draw.lognormvariate(0, 0.08))), at=tick * TICK_S, kv_usage=0.4
        )
        decision = decide(POINT, BOUNDS, seen, state)
        if decision.replicas != have:
            changes.append(decision.replicas - have)
        have, state = decision.replicas, decision.state
    reversals = sum(one * other < 0 for one, other in itertools.pairwise(changes))

    assert reversals <= 4
    assert 5 <= have <= 8
