"""What the load is taken to be where few requests make it, and how far removal looks back."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from cluster.control.load_forecast import Check, LoadRules, Need, burst_work
from cluster.control.replica_rules import GroupBounds, SlowRules, SlowState
from cluster.control.replica_seconds import demand_of
from cluster.control.snapshot import ClassDemand
from penstock.models import RequestClass
from tests.cluster.control.groups import (
    BOUNDS,
    MODEL,
    POINT,
    SHAPE,
    TICK_S,
    decide,
    group,
    interactive,
    seconds_per_request,
)

RULES = LoadRules()


def test_a_few_requests_do_not_make_the_model_look_wrong() -> None:
    """Of few that run and few that should, the mean ratio is far above one although the model is right."""
    draw = random.Random(7)
    factors, check = [], Check()
    running, rate = 0.0, 0.0
    for tick in range(4000):
        # A request in two minutes, each of which runs for four: two at a time.
        came = sum(draw.random() < 1 / 120 for _ in range(int(TICK_S)))
        rate = math.exp(-TICK_S / 60) * rate + (1 - math.exp(-TICK_S / 60)) * came / TICK_S
        running = max(0.0, running + came - sum(draw.random() < TICK_S / 240 for _ in range(int(running))))
        output = round(240 / MODEL.itl(1.0, SHAPE.mix))
        demand = ClassDemand(RequestClass.INTERACTIVE, rate, dataclasses.replace(SHAPE, output_tokens=output))
        check = check.next(group(4, demand, running=running), TICK_S, RULES)
        if tick > 100:
            factors.append(check.factor)

    assert 0.9 < sum(factors) / len(factors) < 1.15


def test_silence_is_not_taken_for_a_model_that_is_too_slow() -> None:
    check = Check()
    for _ in range(100):
        check = check.next(group(4, interactive(3.0), running=0.0), TICK_S, RULES)
    assert 1.0 == check.factor


def test_what_comes_after_a_lull_is_no_burst() -> None:
    kept = math.exp(-2 * TICK_S / 60.0)
    now = kept * 0.5 + (1 - kept) * 4.0
    at = 10_000.0

    def needs(usual: float) -> list[Need]:
        times = [at - TICK_S * number for number in range(80, 0, -1)]
        # A lull of a minute.
        return [Need(time, 0.5 if at - time < 70 else usual, 4, 10.0) for time in times]

    assert burst_work(now, 10.0, needs(0.5), at, RULES) == pytest.approx((now + 4.0) / 2)
    assert burst_work(now, 10.0, needs(3.0), at, RULES) is None


def square(regret_s: float) -> tuple[int, float]:
    """Let ten minutes of little and of much take turns for four hours; returns the fewest replicas of the last two, and
    the patience.
    """
    rules = SlowRules(fill=0.75, regret_s=regret_s)
    state, have, fewest = SlowState(), 12, 100
    for tick in range(960):
        at = tick * TICK_S
        work = 2.0 if at % 1200 < 600 else 8.0
        seen = dataclasses.replace(group(have, interactive(work)), at=at, kv_usage=0.1, cold_start_s=100.0)
        decision = decide(POINT, BOUNDS, seen, state, rules)
        have, state = decision.replicas, decision.state
        if tick >= 480:
            fewest = min(fewest, have)
    return fewest, state.patience


@pytest.mark.slow
def test_who_removes_too_early_again_and_again_looks_back_further() -> None:
    assert (10, 6.0) == square(1800.0)
    fewest, patience = square(0.0)
    assert 1.0 == patience
    assert fewest < 10


def test_patience_ends() -> None:
    state = SlowState(patience=4.0, regretted_at=0.0)
    for at, patience in ((7_000.0, 4.0), (7_200.0, 1.0)):
        seen = dataclasses.replace(group(4, interactive(2.0)), at=at)
        assert patience == decide(POINT, BOUNDS, seen, state).state.patience


def test_replicas_work_on_what_is_due_soon_until_it_is_done() -> None:
    """Too late for a start to help, but not to stay."""
    state = SlowState()
    for tick in range(40):
        at = tick * TICK_S
        left_s = 600.0 - at
        queued = round(7.5 * left_s / seconds_per_request())
        job = ClassDemand(RequestClass.BATCH, 0.0, SHAPE, queued=queued, deadline_s=left_s)
        seen = dataclasses.replace(group(8, interactive(0.01), job), at=at, cold_start_s=900.0)
        decision = decide(POINT, BOUNDS, seen, state)
        assert 8 == decision.replicas
        state = decision.state


def test_a_jobs_requests_are_counted_in_their_own_batches() -> None:
    """Long prompts fill a KV cache; short requests beside them don't make them short."""
    long = ClassDemand(
        RequestClass.BATCH, 0.0, dataclasses.replace(SHAPE, prompt_tokens=30_000), queued=1000, deadline_s=3600.0
    )
    alone = demand_of(POINT, group(4, long, kv_tokens=100_000))
    beside = demand_of(POINT, group(4, interactive(0.01), long, kv_tokens=100_000))

    assert alone is not None
    assert beside is not None
    assert pytest.approx(alone.deadline_work) == beside.deadline_work


def test_an_empty_group_of_which_nothing_is_known_wakes_for_who_comes() -> None:
    """Also where nobody waits, because routers that lack the tokenizer refuse."""
    asleep = GroupBounds(0, 4)
    for rate, needed in ((0.0, 0), (0.5, 1)):
        demand = ClassDemand(RequestClass.STANDARD, rate, SHAPE)
        seen = dataclasses.replace(group(0, *([demand] if rate else [])), model=None)
        assert needed == decide(POINT, asleep, seen, SlowState(active_at=10_000.0 - TICK_S)).replicas
