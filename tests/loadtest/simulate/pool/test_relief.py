"""What a simulated pool gives up for want of replicas: latency, then batch work, then requests."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cluster.clock import ManualClock
from cluster.control.replica_rules import GroupBounds
from cluster.queue.heartbeats import RouterBeat
from cluster.queue.redis.queue import RedisQueue
from cluster.redis.in_process.server import InProcessRedis
from cluster.settings import SimSettings
from loadtest.simulate.autoscalers.contract import Arrival, PoolSnapshot, ReplicaSnapshot
from loadtest.simulate.autoscalers.penstock import PenstockSlow, model_of, penstock_slow, point_of
from loadtest.simulate.pool.loop import now
from loadtest.simulate.pool.outcome import Outcome, RequestEnd, SimulatedRun
from loadtest.simulate.pool.relief import ReliefOrders, Relieving
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.results.figures import Figures, figures_of
from loadtest.simulate.setup import Setup, Slo
from loadtest.traces import TraceRequest
from penstock.models import ReplicaState, RequestClass
from penstock.values.steps import Relief

ENGINE = SimSettings(
    base_ms=10.0, per_token_us=40.0, per_kv_token_us=0.1, kv_tokens=30_000, max_num_seqs=8, max_num_batched_tokens=512
)
CAPACITY_PER_S = 12.5
"""Requests as they are drawn here that one replica serves."""
SLO = Slo(2.0, 0.1)
SETTLED_S = 25.0
"""By then the replica policy has decided, and what had piled up before has gone."""


class Gives:
    """Gives up what it is told to from a moment on; the number of replicas stays."""

    point = point_of({RequestClass.STANDARD: SLO, RequestClass.INTERACTIVE: SLO})

    def __init__(self, relief: Relief) -> None:
        self.relief = relief

    def decide(self, snapshot: PoolSnapshot) -> int:
        return snapshot.desired


def draw_trace(per_s: float, seconds: float = 60.0, seed: int = 1) -> list[TraceRequest]:
    rnd = random.Random(seed)
    gaps = (rnd.expovariate(per_s) for _ in range(int(per_s * seconds)))
    return [
        TraceRequest(number, at, rnd.randint(10, 900), rnd.randint(1, 90))
        for number, at in enumerate(itertools.accumulate(gaps))
    ]


def fixed(**more: object) -> Setup:
    setup = Setup(ENGINE, replicas=2, min_replicas=2, max_replicas=2, slow_period_s=5.0, slo=SLO)
    return replace(setup, **more)  # type: ignore[arg-type]


def simulate(trace: Sequence[TraceRequest], setup: Setup) -> SimulatedRun:
    return Simulation(trace, setup, slow=penstock_slow(setup, point_of({RequestClass.STANDARD: SLO}))).run()


def figures(run: SimulatedRun) -> Figures:
    return figures_of(run, dict.fromkeys(RequestClass, SLO))


def kept(run: SimulatedRun) -> float:
    """Return which part of those that were let in, once things had settled, kept their SLO."""
    let_in = [each for each in run.outcomes if each.arrival_s > SETTLED_S and each.end is RequestEnd.COMPLETED]
    return sum(each.attains(SLO) for each in let_in) / len(let_in)


@pytest.mark.slow
def test_under_twice_the_load_those_who_are_let_in_keep_their_slo() -> None:
    trace = draw_trace(2 * 2 * CAPACITY_PER_S)
    patient, run = simulate(trace, fixed(relief=False, late_last=False)), simulate(trace, fixed())

    # Without refusals the line only grows, and everybody waits for it.
    waiting = [sample.waiting for sample in patient.samples if sample.at_s < trace[-1].arrival_s]
    assert waiting[-1] > 1.8 * waiting[len(waiting) // 2] > 1000
    assert 0 == figures(patient).rejected
    assert 0.0 == kept(patient)

    found = figures(run)
    assert found.requests / 3 < found.rejected < found.requests * 2 / 3
    assert kept(run) >= 0.97
    # Those who came before the first refusal are late, and go a few at a time.
    waiting = [sample.waiting for sample in run.samples if SETTLED_S < sample.at_s < trace[-1].arrival_s]
    assert waiting[-1] < 0.8 * waiting[0]
    # Who is refused makes room and no more than that: the replicas have as much to do as before.
    assert found.output_tokens / found.virtual_s > 0.97 * figures(patient).output_tokens / figures(patient).virtual_s


@pytest.mark.slow
def test_where_nobody_is_refused_late_ones_let_those_pass_that_can_still_be_in_time() -> None:
    trace = draw_trace(2 * 2 * CAPACITY_PER_S)
    by_arrival, late_last = (simulate(trace, fixed(relief=False, late_last=on)) for on in (False, True))

    # Half of them can be served in time at most, and each late one that was passed often enough takes a place.
    assert 0.0 == kept(by_arrival)
    assert 0.3 < kept(late_last) < 0.5
    assert figures(late_last).completed == figures(by_arrival).completed == len(trace)
    assert figures(late_last).virtual_s == pytest.approx(figures(by_arrival).virtual_s, rel=0.02)


@pytest.mark.slow
def test_while_there_is_room_the_order_is_that_of_arrival() -> None:
    trace = draw_trace(0.9 * 2 * CAPACITY_PER_S)
    by_arrival, late_last = (simulate(trace, fixed(late_last=on)).outcomes for on in (False, True))

    assert by_arrival == late_last


@pytest.mark.slow
def test_long_prompts_are_refused_as_often_as_short_ones() -> None:
    run = simulate(draw_trace(2 * 2 * CAPACITY_PER_S), fixed())

    came = [each for each in run.outcomes if each.arrival_s > SETTLED_S]
    means = [sum(each.prompt_tokens for each in some) / len(some) for some in split(came)]
    assert means[1] == pytest.approx(means[0], rel=0.05)


def split(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """Return those that were completed, and the others."""
    done = [each for each in outcomes if each.end is RequestEnd.COMPLETED]
    return done, [each for each in outcomes if each.end is not RequestEnd.COMPLETED]


@pytest.mark.slow
def test_refused_requests_are_misses_and_in_no_latency() -> None:
    run = simulate(draw_trace(2 * 2 * CAPACITY_PER_S), fixed())

    found = figures(run)
    met = sum(each.attains(SLO) for each in run.outcomes)
    assert met / found.requests == found.attainment <= found.completed / found.requests
    assert found.ttft_s.mean == pytest.approx(
        sum(each.ttft_s for each in run.outcomes if each.end is RequestEnd.COMPLETED) / found.completed
    )


@pytest.mark.slow
def test_a_load_that_fits_is_served_whole() -> None:
    found = figures(simulate(draw_trace(0.7 * 2 * CAPACITY_PER_S), fixed()))

    assert (0, found.requests) == (found.rejected, found.completed)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.9, 1.1, 3.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_request_is_either_completed_or_refused(load: float, seed: int) -> None:
    trace = draw_trace(load * 2 * CAPACITY_PER_S, 20.0, seed)
    classes = [replace(each, request_class=RequestClass(1 + each.number % 2)) for each in trace]
    run = simulate(classes, fixed(routers=2, seed=seed, slow_period_s=2.0))

    found = figures(run)
    assert list(range(len(trace))) == sorted(each.number for each in run.outcomes)
    assert len(trace) == found.requests == found.completed + found.rejected
    assert found.rejected == sum(each["rejected"] for each in found.classes.values())
    # They are promised nothing, so there is nothing that they would wait too long for.
    assert 0 == found.classes["batch"]["rejected"]


@pytest.mark.slow
@pytest.mark.parametrize("relief", Relief)
def test_only_the_last_step_refuses(relief: Relief) -> None:
    run = Simulation(draw_trace(60.0, 20.0), fixed(), slow=Gives(relief)).run()

    assert (relief is Relief.SHED) == (figures(run).rejected > 0)


@pytest.mark.slow
def test_nobody_is_refused_while_replicas_are_to_come() -> None:
    setup = fixed(max_replicas=6, cold_start_s=30.0)
    slow = penstock_slow(setup, point_of({RequestClass.STANDARD: SLO}))
    run = Simulation(draw_trace(2 * 2 * CAPACITY_PER_S), setup, slow=slow).run()

    assert max(sample.ready for sample in run.samples) > 3
    assert 0 == figures(run).rejected


@pytest.mark.slow
def test_batch_work_loses_its_reserved_share_before_anybody_is_refused() -> None:
    trace = draw_trace(60.0, 20.0)
    classes = (RequestClass.INTERACTIVE, RequestClass.BATCH)
    mixed = [replace(each, request_class=classes[each.number % 2]) for each in trace]

    def early_batch(relief: Relief) -> int:
        run = Simulation(mixed, fixed(), slow=Gives(relief)).run()
        assert 0 == figures(run).rejected
        batch = [each for each in run.outcomes if each.request_class is RequestClass.BATCH]
        return sum(each.arrival_s + each.e2e_s < 20.0 for each in batch)

    assert early_batch(Relief.PREEMPT_BATCH) < early_batch(Relief.LATENCY)


def test_replicas_hear_of_it_with_their_heartbeats() -> None:
    heard: list[tuple[float, Relief]] = []

    class Hears:
        def decide(self, snapshot: ReplicaSnapshot) -> int:
            heard.append((snapshot.now_s, snapshot.relief))
            return snapshot.limit

    Simulation(draw_trace(10.0, 10.0), fixed(), slow=Gives(Relief.LATENCY), fast=Hears).run()
    Simulation(draw_trace(10.0, 10.0), fixed(relief=False), slow=Gives(Relief.LATENCY), fast=Hears).run()

    split = next(n for n in range(1, len(heard)) if heard[n][0] < heard[n - 1][0])
    assert {Relief.LATENCY} == {relief for at, relief in heard[:split] if at > 2.0}
    assert {Relief.NONE} == {relief for _, relief in heard[split:]}


def test_it_ends_by_itself_when_nothing_more_is_said() -> None:
    clock = ManualClock()
    store = InProcessRedis(clock)
    queue = RedisQueue(store, "pool")
    ReliefOrders(Gives(Relief.SHED), store, "pool", period_s=15.0).publish(2, clock.wall_ms())

    def heard() -> str:
        return now(queue.heartbeat_router(RouterBeat("router", ()))).relief

    clock.advance(44.0)
    assert "shed" == heard()
    clock.advance(2.0)
    assert "none" == heard()


@pytest.mark.slow
def test_a_queue_timeout_that_the_estimate_exceeds_refuses_at_once() -> None:
    """Clients' own bounds hold under every policy, as routers need no autoscaler for them."""
    run = Simulation(draw_trace(2 * 2 * CAPACITY_PER_S, 30.0), fixed(queue_timeout_s=3.0)).run()

    found = figures(run)
    assert found.requests == found.completed + found.rejected
    assert found.rejected > found.requests / 3
    # Hardly anybody stays for the whole time only to be sent away.
    assert max(sample.waiting for sample in run.samples) < 1.5 * 3.0 * 2 * CAPACITY_PER_S


def test_who_is_turned_away_is_a_miss_for_the_slow_loop() -> None:
    setup = fixed()
    policy = PenstockSlow(point_of({RequestClass.STANDARD: SLO}), GroupBounds(2, 2), model_of(setup), 8)
    assert isinstance(policy, Relieving)
    assert Relief.NONE is policy.relief

    def look(at: float, turned_away: Sequence[RequestClass]) -> float | None:
        ready = (ReplicaSnapshot("r", at, ReplicaState.READY, at, 8, 8),)
        came = [Arrival(at, RequestClass.STANDARD, 100)]
        policy.decide(PoolSnapshot(at, 2, 60.0, ready, arrived=came, turned_away=turned_away))
        return policy._seen(PoolSnapshot(at, 2, 60.0, ready)).attainment

    assert look(0.0, [RequestClass.BATCH] * 300) is None
    assert 0.0 == look(5.0, [RequestClass.STANDARD] * 300)
