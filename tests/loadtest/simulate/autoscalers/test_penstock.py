"""The adapters between the simulator and Penstock's own policies."""

from __future__ import annotations

from datetime import time

import pytest

from cluster.autoscaler.ahead.foresight import Foresight
from cluster.autoscaler.assemble import MOST_SPREAD
from cluster.control.replica_rules import GroupBounds
from cluster.control.settings import ControlMode
from cluster.control.step_model import Shape, StepModel
from cluster.forecast.schedule import ScheduledTime
from cluster.queue.entries import QueueLimits
from cluster.settings import SimSettings
from loadtest.simulate.autoscalers.contract import Arrival, Ended, PoolSnapshot, ReplicaSnapshot, StepColumns
from loadtest.simulate.autoscalers.imitations import Dynamo, Wva
from loadtest.simulate.autoscalers.penstock import PenstockFast, PenstockSlow, model_of, penstock_slow, point_of
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.results.figures import figures_of
from loadtest.simulate.setup import Setup, Slo
from loadtest.traces import TraceRequest
from penstock.models import ReplicaState, RequestClass

MODEL = StepModel(0.1, 1e-3, 0.0)
POINT = point_of({RequestClass.STANDARD: Slo(2.0, 0.2)})


def pool(at: float, *, arrivals: int = 0, prompt: int = 500, ready: int = 1, starting: int = 0, kv: float = 0.0,
         waiting: int = 0) -> PoolSnapshot:  # fmt: skip
    replicas = [
        *(ReplicaSnapshot(f"r{n}", at, ReplicaState.READY, at, 8, 8, kv_usage=kv) for n in range(ready)),
        *(ReplicaSnapshot(f"s{n}", at, ReplicaState.STARTING, 0.0) for n in range(starting)),
    ]
    came = [Arrival(at, RequestClass.STANDARD, prompt)] * arrivals
    done = [Ended(at, RequestClass.STANDARD, prompt, 0, 50, 1.0, 0.12, 0.1)] * arrivals
    return PoolSnapshot(at, ready + starting, 60.0, replicas, {RequestClass.STANDARD: waiting}, {}, came, done)


def wanted(policy: PenstockSlow, **more: int) -> int:
    decided = [policy.decide(pool(15.0 * tick, arrivals=30 if tick else 0, **more)) for tick in range(20)]
    return decided[-1]


def slow() -> PenstockSlow:
    return PenstockSlow(POINT, GroupBounds(1, 100), MODEL, largest=8)


def test_longer_prompts_at_the_same_rate_bring_more_replicas() -> None:
    # 2 requests per second, each of 50 steps in batches of 8: (50 * 0.1 / 8 + 0.55) * 2 = 2.35 replica-seconds.
    assert 4 <= wanted(slow(), ready=2) <= 5
    assert wanted(slow(), prompt=2000, ready=3) >= 7


@pytest.mark.slow
@pytest.mark.parametrize(("prompt", "output"), [(4_000, 200), (4_000, 20), (300, 200)])
def test_replica_seconds_are_what_a_replica_that_is_full_takes(prompt: int, output: int) -> None:
    """Whether prompts fill its steps or its sequences bind."""
    engine = SimSettings(
        base_ms=312.5, per_token_us=1050.0, per_kv_token_us=1.775, kv_tokens=400_000, max_num_seqs=48,
        max_num_batched_tokens=512,
    )  # fmt: skip
    each = model_of(Setup(engine)).gpu_seconds(Shape(prompt, output), 48.0, 512)
    trace = [TraceRequest(n, 0.8 * each * n, prompt, output) for n in range(400)]
    run = Simulation(trace, Setup(engine, prefix_cache=False, limits=QueueLimits(max_waiting=1000))).run()

    ends = sorted(outcome.arrival_s + outcome.e2e_s for outcome in run.outcomes)
    taken = (ends[320] - ends[80]) / 240
    # Prompts larger than the prefill window go one by one, with a step without any in between.
    assert 0.97 * each < taken < 1.08 * each


def test_the_first_minute_is_not_averaged_with_nothing() -> None:
    policy = slow()
    policy.decide(pool(0.0))

    assert 3 <= policy.decide(pool(15.0, arrivals=30)) <= 5


def test_what_holds_a_slot_runs_and_only_the_queue_waits() -> None:
    """As the store counts for a leader. What an engine has not begun has its replica already."""
    replicas = [
        ReplicaSnapshot("a", 15.0, ReplicaState.READY, 99.0, 8, 8, running=5, waiting=2),
        ReplicaSnapshot("b", 15.0, ReplicaState.DRAINING, 99.0, 8, 8, running=1),
    ]
    seen = slow()._seen(PoolSnapshot(15.0, 1, 60.0, replicas, {RequestClass.STANDARD: 3}))
    assert (8, 3) == (seen.running, seen.waiting)


@pytest.mark.parametrize(("ended", "attainment"), [(199, None), (200, 1.0)])
def test_an_attainment_rests_on_as_many_requests_as_a_leaders(ended: int, attainment: float | None) -> None:
    policy = slow()
    policy._take(pool(15.0, arrivals=ended), 15.0)
    assert attainment == policy._seen(pool(15.0)).attainment


def test_the_spread_counts_as_far_as_a_leaders() -> None:
    policy = slow()
    wide = Ended(15.0, RequestClass.STANDARD, 500, 0, 50, 1.0, 1.2, 0.1)
    for tick in range(1, 30):
        policy._take(PoolSnapshot(15.0 * tick, 1, 60.0, ended=[wide]), 15.0)
    assert MOST_SPREAD == policy._seen(pool(450.0)).spread


def test_a_request_at_the_very_start_is_not_one_per_second() -> None:
    policy = slow()

    assert 1 == policy.decide(pool(0.0, arrivals=1, prompt=2000))
    assert 1 == policy.decide(pool(15.0, prompt=2000))
    assert policy.last is not None
    assert policy._meters[RequestClass.STANDARD].warm_rate == pytest.approx(1 / 15)


def test_preemptions_are_those_since_the_last_tick() -> None:
    policy = PenstockFast(POINT, MODEL)
    steps = StepColumns([0.15] * 40, [8] * 40, [8] * 40, [800] * 40, [8] * 40)

    def limit(preemptions: int) -> int:
        seen = ReplicaSnapshot(
            "r", 1.0, ReplicaState.READY, 9.0, 8, 8, 8, 0, 0.5, 10_000, preemptions=preemptions, steps=steps
        )
        return policy.decide(seen)

    limit(5)
    trim = policy._state.trim
    assert trim < 1.0
    limit(5)
    assert policy._state.trim >= trim
    limit(6)
    assert policy._state.trim < trim


def test_a_tick_that_is_not_due_keeps_the_limit() -> None:
    policy = PenstockFast(POINT, MODEL, every=3)
    steps = StepColumns([0.5] * 40, [8] * 40, [300] * 40, [800] * 40, [8] * 40)
    seen = ReplicaSnapshot("r", 1.0, ReplicaState.READY, 9.0, 8, 8, 8, 0, 0.5, 10_000, steps=steps)

    limits = [policy.decide(seen) for _ in range(3)]
    assert [8, 8] == limits[:2]
    assert limits[2] < 8


@pytest.mark.slow
def test_both_loops_serve_a_load_that_grows() -> None:
    engine = SimSettings(base_ms=100.0, per_token_us=1000.0, per_kv_token_us=0.1, kv_tokens=20_000, max_num_seqs=8,
                         max_num_batched_tokens=256)  # fmt: skip
    gaps = [2.0] * 60 + [0.5] * 500
    trace = [TraceRequest(n, sum(gaps[:n]), 300, 40) for n in range(len(gaps))]
    setup = Setup(engine, replicas=1, cold_start_s=30.0, slo=Slo(5.0, 0.6))
    point = point_of({RequestClass.STANDARD: setup.slo})
    run = Simulation(
        trace, setup, fast=lambda: PenstockFast(point, model_of(setup)), slow=penstock_slow(setup, point)
    ).run()

    figures = figures_of(run, {RequestClass.STANDARD: setup.slo})
    assert 3 <= max(sample.ready for sample in run.samples) <= 6
    assert figures.attainment > 0.9
    assert figures.reversals <= 1


@pytest.mark.slow
@pytest.mark.parametrize("scheduled", [True, False])
def test_a_schedule_from_ten_past_has_its_replicas_at_ten_past(scheduled: bool) -> None:
    """A load that becomes twenty times as large at once is served in time from its first minute on."""
    engine = SimSettings(base_ms=100.0, per_token_us=100.0, per_kv_token_us=0.1, kv_tokens=20_000, max_num_seqs=8)
    trace = [TraceRequest(n, at, 100, 20) for n, at in enumerate([*range(600), *(600 + n / 20 for n in range(6000))])]
    setup = Setup(engine, replicas=2, max_replicas=60, cold_start_s=90.0, slo=Slo(5.0, 0.6))
    slow = penstock_slow(setup, point_of({RequestClass.STANDARD: setup.slo}))
    due = ScheduledTime(time(0, 10), time(1), frozenset(range(7)), "UTC", 40)
    slow.foresight = Foresight("demo", ControlMode.OFF, (due,) if scheduled else ())
    run = Simulation(trace, setup, slow=slow).run()

    at_ten_past = next(sample.ready for sample in run.samples if sample.at_s >= 600.0)
    first = [each.ttft_s for each in run.outcomes if 600.0 <= each.arrival_s < 660.0]
    late = sum(each is None or each > setup.slo.ttft_s for each in first) / len(first)
    assert (40, True) == (at_ten_past, late < 0.01) if scheduled else (at_ten_past < 5 and late > 0.3)


def test_dynamo_sizes_for_the_last_interval() -> None:
    policy = Dynamo(MODEL, batch=8.0)
    decided = [policy.decide(pool(15.0 * tick, arrivals=30 if tick else 0)) for tick in range(13)]

    assert {1} == set(decided[:12])
    assert 3 == decided[12]
    # Requests take the same model, so half the target is twice as many.
    half = Dynamo(MODEL, batch=8.0, target=0.5)
    assert 5 == [half.decide(pool(15.0 * tick, arrivals=30 if tick else 0)) for tick in range(13)][12]


def test_dynamo_forgets_a_lull() -> None:
    policy = Dynamo(MODEL, batch=8.0)
    decided = [policy.decide(pool(15.0 * tick, arrivals=30 if tick > 240 else 0)) for tick in range(253)]

    assert {1} == set(decided[:252])
    assert 3 == decided[252]


@pytest.mark.parametrize(("more", "expected"), [({"kv": 0.75}, 3), ({"kv": 0.75, "starting": 1}, 3), ({"kv": 0.5}, 2)])
def test_wva_adds_one_at_a_time_and_waits_for_it(more: dict[str, float], expected: int) -> None:
    assert expected == Wva().decide(pool(0.0, ready=2, **more))  # type: ignore[arg-type]


def test_wva_removes_one_after_a_while_if_the_rest_would_do() -> None:
    policy = Wva()
    decided = [policy.decide(pool(60.0 * tick, ready=4, kv=0.2)) for tick in range(6)]
    assert [4, 4, 4, 4, 3, 3] == decided
    crowded = Wva()
    assert {2} == {crowded.decide(pool(60.0 * tick, ready=2, kv=0.5)) for tick in range(6)}
