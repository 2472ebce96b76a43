"""The whole simulated cluster: nothing is lost, the same seed gives the same run, and replicas live as they should."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from cluster.errors import SettingsError
from cluster.queue.entries import QueueLimits
from cluster.queue.heartbeats import ReplicaBeat, ReplicaBeatReply
from cluster.queue.redis.queue import RedisQueue
from cluster.settings import AffinitySettings, SimSettings
from loadtest.simulate.autoscalers.contract import PoolSnapshot, ReplicaSnapshot
from loadtest.simulate.pool.outcome import RequestEnd, SimulatedRun
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.results.figures import figures_of
from loadtest.simulate.setup import Death, Setup, Slo
from loadtest.traces import TraceRequest
from penstock.models import ReplicaState, RequestClass
from router.affinity import Affinity

ENGINE = SimSettings(
    base_ms=10.0, per_token_us=40.0, per_kv_token_us=0.1, kv_tokens=30_000, max_num_seqs=8, max_num_batched_tokens=512
)
SLOS = dict.fromkeys(RequestClass, Slo())


@dataclass(frozen=True)
class Static:
    """A policy that keeps a number, as a batch limit or as a replica count."""

    number: int

    def decide(self, _snapshot: object) -> int:
        return self.number


def draw_trace(requests: int = 300, per_s: float = 10.0, seed: int = 1, **more: object) -> list[TraceRequest]:
    rnd = random.Random(seed)
    gaps = (rnd.expovariate(per_s) for _ in range(requests))
    return [
        TraceRequest(number, at, rnd.randint(10, 900), rnd.randint(1, 90), **more)  # type: ignore[arg-type]
        for number, at in enumerate(itertools.accumulate(gaps))
    ]


class Planned:
    """Names a replica count by the time; keeps what it was shown."""

    def __init__(self, *plan: tuple[float, int]) -> None:
        self._plan = plan
        self.seen: list[PoolSnapshot] = []

    def decide(self, snapshot: PoolSnapshot) -> int:
        self.seen.append(snapshot)
        return next((count for at, count in reversed(self._plan) if snapshot.now_s >= at), snapshot.desired)


def ends(run: SimulatedRun) -> dict[int, RequestEnd]:
    assert sorted(each.number for each in run.outcomes) == list(range(len(run.outcomes)))
    return {each.number: each.end for each in run.outcomes}


def test_every_request_ends_once_whatever_happens() -> None:
    trace = draw_trace()
    trace[7] = replace(trace[7], prompt_tokens=40_000)
    mixed = [replace(each, request_class=RequestClass(each.number % 3), tenant=f"t{each.number % 5}") for each in trace]
    setup = Setup(
        replace_engine(kv_tokens=4_000),
        replicas=2,
        routers=2,
        cold_start_s=5.0,
        slow_period_s=3.0,
        queue_timeout_s=4.0,
        deaths=(Death(6.0), Death(15.0, 2)),
        limits=QueueLimits(max_waiting=30),
    )
    run = Simulation(mixed, setup, slow=Planned((6.0, 3), (12.0, 1), (18.0, 2))).run()

    found = ends(run)
    figures = figures_of(run, SLOS)
    assert len(trace) == len(found)
    assert RequestEnd.REJECTED is found[7]
    assert figures.completed + figures.rejected == figures.requests == 300
    assert 100 < figures.completed < 300
    assert set(figures.classes) == {"interactive", "standard", "batch"}


def test_a_request_that_no_engine_could_serve_is_no_demand() -> None:
    trace = draw_trace()
    trace[7] = replace(trace[7], prompt_tokens=40_000)
    policy = Planned()
    run = Simulation(trace, Setup(replace_engine(kv_tokens=4_000), slow_period_s=3.0), slow=policy).run()

    counted = [each.prompt_tokens for seen in policy.seen for each in seen.arrived]
    assert RequestEnd.REJECTED is ends(run)[7]
    assert len(counted) > 250
    assert max(counted) < 40_000


def replace_engine(**changes: object) -> SimSettings:
    return ENGINE.model_copy(update=changes)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_another_does_not() -> None:
    def simulate(seed: int) -> list[object]:
        setup = Setup(replace_engine(kv_tokens=4_000), replicas=2, routers=3, seed=seed)
        run = Simulation(draw_trace(per_s=30.0), setup).run()
        return sorted(run.outcomes, key=lambda outcome: outcome.number)  # type: ignore[return-value]

    assert simulate(1) == simulate(1)
    assert simulate(1) != simulate(2)


def test_times_add_up_on_an_idle_cluster() -> None:
    """One request alone: its prefill is one step, and each token one more."""
    run = Simulation([TraceRequest(0, 0.0, 100, 5)], Setup(ENGINE)).run()

    (outcome,) = run.outcomes
    steps = [0.010 + 100 * 40e-6 + 100 * 0.1e-6, *(0.010 + 40e-6 + kv * 0.1e-6 for kv in (101, 102, 103, 104))]
    assert outcome.ttft_s == pytest.approx(steps[0])
    assert outcome.e2e_s == pytest.approx(sum(steps))
    assert outcome.itl_p95_s == pytest.approx(steps[-1])
    figures = figures_of(run, SLOS)
    assert figures.itl_s.mean == pytest.approx(sum(steps[1:]) / 4)
    assert figures.attainment == 1.0


def test_all_gaps_between_tokens_are_those_of_the_requests() -> None:
    """Two ways to count: by steps for the pool, by requests."""
    run = Simulation(draw_trace(per_s=30.0), Setup(replace_engine(kv_tokens=3_000), replicas=2)).run()

    figures = figures_of(run, SLOS)
    tokens = sum(each.output_tokens - 1 for each in run.outcomes)
    by_request = sum(each.itl_mean_s * (each.output_tokens - 1) for each in run.outcomes)
    assert figures.preemptions > 0
    assert figures.itl_s.mean == pytest.approx(by_request / tokens)


def test_a_smaller_batch_limit_trades_throughput_for_gaps() -> None:
    trace = draw_trace(per_s=60.0)
    small, large = (figures_of(Simulation(trace, Setup(replace_engine(max_num_seqs=n))).run(), SLOS) for n in (2, 8))

    assert (small.itl_s.p50 or 1) < (large.itl_s.p50 or 0)
    assert small.virtual_s > 1.5 * large.virtual_s


def test_a_fast_policy_moves_the_limit_of_its_replica() -> None:
    class Halve:
        def __init__(self) -> None:
            self.steps = self.started = 0

        def decide(self, snapshot: ReplicaSnapshot) -> int:
            self.steps += len(snapshot.steps.seconds)
            assert len(snapshot.steps.seconds) == len(snapshot.steps.kv_tokens) == len(snapshot.steps.decoded)
            assert snapshot.largest_limit == 8
            self.started += len(snapshot.started)
            assert sum(snapshot.running_by_class.values()) == snapshot.running + snapshot.waiting
            assert sum(snapshot.running_by_class.values()) <= self.started
            return 8 if snapshot.now_s < 5 else 2

    made: list[Halve] = []

    def make() -> Halve:
        made.append(Halve())
        return made[-1]

    run = Simulation(draw_trace(per_s=60.0), Setup(ENGINE, replicas=2, samples=1000), fast=make).run()

    assert len(made) == 2
    assert {16, 4} == {sample.limit for sample in run.samples if not 5 <= sample.at_s <= 7}
    late = [sample.running for sample in run.samples if sample.at_s > 12]
    assert 4 == max(late)
    counted = [len(member.replica.log) for member in run.fleet.members.values()]
    assert all(0.9 * steps <= each.steps <= steps for each, steps in zip(made, counted, strict=True))


def test_a_new_replica_serves_after_its_cold_start_and_costs_from_its_order() -> None:
    policy = Planned((10.0, 2))
    run = Simulation(
        draw_trace(requests=900), Setup(ENGINE, cold_start_s=20.0, slow_period_s=5.0, samples=1000), slow=policy
    ).run()

    states = {round(sample.at_s): (sample.ready, sample.starting) for sample in run.samples}
    assert [(1, 0), (1, 1), (2, 0)] == [states[5], states[20], states[35]]
    assert run.fleet.hours(run.seconds) == pytest.approx((2 * run.seconds - 10) / 3600, abs=1e-3)
    assert run.fleet.hours(12.0, 7.0) == pytest.approx((2 * 5 - 3) / 3600)
    first = next(each for each in run.fleet.members.values() if each.created_at > 0)
    assert 30.0 == first.ready_at
    assert first.replica.log.seconds
    assert figures_of(run, SLOS).scale_events == 1


def test_a_replica_drains_before_it_goes_and_then_costs_nothing() -> None:
    run = Simulation(
        draw_trace(requests=600), Setup(ENGINE, replicas=3, slow_period_s=5.0), slow=Planned((10.0, 1))
    ).run()

    assert {RequestEnd.COMPLETED} == set(ends(run).values())
    assert ["r1", "r2"] == sorted(member.name for member in run.fleet.gone)
    assert all(10.0 <= (member.removed_at or 0) < 15.0 for member in run.fleet.gone)
    assert any((member.removed_at or 0) > 10.0 for member in run.fleet.gone)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [(), ((4_000.0, 3), (9_000.0, 1))])
def test_heartbeats_rest_while_nobody_comes(
    monkeypatch: pytest.MonkeyPatch, plan: tuple[tuple[float, int], ...]
) -> None:
    """A trace of weeks would have more of them than requests."""
    beats = 0
    beat = RedisQueue.heartbeat_replica

    async def counted(self: RedisQueue, seen: ReplicaBeat) -> ReplicaBeatReply:
        nonlocal beats
        beats += 1
        return await beat(self, seen)

    def ttfts(apart_s: float) -> list[float]:
        trace = [TraceRequest(n, apart_s * (n // 12) + n % 12 / 4, 500, 40) for n in range(72)]
        run = Simulation(trace, Setup(ENGINE, replicas=2, samples=10), slow=Planned(*plan)).run()
        assert {RequestEnd.COMPLETED} == {each.end for each in run.outcomes}
        return [each.ttft_s for each in run.outcomes]

    close = ttfts(20.0)
    monkeypatch.setattr(RedisQueue, "heartbeat_replica", counted)

    # The first ones find the same pool, before the policy does anything.
    assert pytest.approx(close[:24]) == ttfts(3_600.0)[:24]
    assert beats < 3_000 < 5 * 3_600


@pytest.mark.slow
def test_what_still_starts_goes_first_and_reversals_are_counted() -> None:
    policy = Planned((10.0, 4), (20.0, 2), (25.0, 3))
    run = Simulation(
        draw_trace(requests=600), Setup(ENGINE, replicas=2, cold_start_s=60.0, slow_period_s=5.0), slow=policy
    ).run()

    assert ["r2", "r3"] == sorted(member.name for member in run.fleet.gone)
    assert all(member.replica.state is ReplicaState.STARTING for member in run.fleet.gone)
    figures = figures_of(run, SLOS)
    assert (3, 2) == (figures.scale_events, figures.reversals)
    assert [1, 1, 0] == [run.fleet.reversals(2, *times) for times in ((25.0,), (30.0, 21.0), (20.0,))]


@pytest.mark.slow
def test_a_dead_replica_is_replaced_and_its_requests_go_on_elsewhere() -> None:
    trace = draw_trace(requests=600)
    setup = Setup(ENGINE, replicas=2, cold_start_s=10.0)
    calm = Simulation(trace, setup).run()
    run = Simulation(trace, replace(setup, deaths=(Death(10.0),))).run()

    assert {RequestEnd.COMPLETED} == set(ends(run).values())
    assert ["r0"] == [member.name for member in run.fleet.gone]
    assert ["r1", "r2"] == list(run.fleet.members)
    assert figures_of(run, SLOS).output_tokens == figures_of(calm, SLOS).output_tokens
    assert max(each.e2e_s for each in run.outcomes) > max(each.e2e_s for each in calm.outcomes)


def test_a_replica_may_die_that_never_had_anything_to_do() -> None:
    setup = Setup(ENGINE, replicas=2, cold_start_s=10.0, deaths=(Death(5.0, 2),))
    run = Simulation([TraceRequest(0, 0.0, 10, 1), TraceRequest(1, 6.0, 10, 1)], setup).run()

    assert {0: RequestEnd.COMPLETED, 1: RequestEnd.COMPLETED} == ends(run)
    assert ["r0", "r1"] == [member.name for member in run.fleet.gone]


def test_a_policy_sees_every_arrival_and_every_end_once() -> None:
    policy = Planned()
    trace = draw_trace()
    run = Simulation([*trace, TraceRequest(300, 200.0, 10, 1)], Setup(ENGINE, replicas=1), slow=policy).run()

    arrived = [each for snapshot in policy.seen for each in snapshot.arrived]
    ended = [each for snapshot in policy.seen for each in snapshot.ended]
    assert [each.prompt_tokens for each in trace] == [each.prompt_tokens for each in arrived]
    assert len(trace) == len(ended)
    waits = [snapshot.oldest_wait_s.get(RequestClass.STANDARD, 0.0) for snapshot in policy.seen]
    assert (max(waits) > 1.0) == (max(each.queue_s for each in run.outcomes) > 5.0)


def test_batch_gives_way_to_interactive_and_goes_on_later() -> None:
    long = [TraceRequest(n, 0.0, 200, 2_000, RequestClass.BATCH) for n in range(8)]
    short = [TraceRequest(8, 5.0, 200, 50, RequestClass.INTERACTIVE)]
    patient = Setup(ENGINE, limits=QueueLimits(preempt_after_ms=0))

    yields, waits = (Simulation([*long, *short], each).run() for each in (Setup(ENGINE), patient))

    assert {RequestEnd.COMPLETED} == set(ends(yields).values()) == set(ends(waits).values())
    ttft = [next(each.ttft_s for each in run.outcomes if each.number == 8) for run in (yields, waits)]
    assert ttft[0] < 3.0 < 10.0 < ttft[1]
    # What gave way has every token once, and goes on from where it was.
    assert {2_000} == {each.output_tokens for each in yields.outcomes if each.number < 8}
    assert max(each.e2e_s for each in yields.outcomes) < 1.2 * max(each.e2e_s for each in waits.outcomes)


def test_nobody_waits_for_ever_without_replicas() -> None:
    run = Simulation(draw_trace(requests=20), Setup(ENGINE, replicas=0, min_replicas=0, give_up_s=30.0)).run()

    assert {RequestEnd.UNFINISHED} == set(ends(run).values())
    assert figures_of(run, SLOS).attainment == 0.0


def test_a_pool_at_zero_comes_back() -> None:
    setup = Setup(ENGINE, replicas=0, min_replicas=0, cold_start_s=30.0, give_up_s=20.0)
    run = Simulation(draw_trace(requests=20), setup, slow=Planned((0.0, 0), (15.0, 1))).run()

    assert {RequestEnd.COMPLETED} == set(ends(run).values())
    assert min(each.ttft_s for each in run.outcomes) > 30.0


@pytest.mark.parametrize("affinity", [None, lambda: Affinity(AffinitySettings())])
def test_shared_beginnings_are_found_in_the_cache(affinity: Callable[[], Affinity] | None) -> None:
    rnd = random.Random(3)
    trace = [
        TraceRequest(n, 0.2 * n, 1_000, 20, session=str(talk), block_ids=(talk, talk + 1_000), block_tokens=512)
        for n in range(200)
        for talk in [rnd.randint(0, 5)]
    ]
    cached, cold = (
        figures_of(Simulation(trace, Setup(ENGINE, replicas=3, prefix_cache=on), affinity=affinity).run(), SLOS)
        for on in (True, False)
    )

    assert cold.cached_tokens == 0
    assert cached.cached_tokens > 512 * 150
    assert (cached.ttft_s.mean or 1) < (cold.ttft_s.mean or 0)


def test_a_manual_count_is_bounded() -> None:
    setup = Setup(ENGINE, replicas=2, min_replicas=2, max_replicas=3, slow_period_s=1.0)
    run = Simulation(draw_trace(), setup, slow=Static(50)).run()
    assert 3 == run.fleet.desired


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"replicas": -1}, "replicas must be 0 to"),
        ({"routers": 0}, "routers must be at least 1, got 0"),
        ({"min_replicas": 5, "max_replicas": 4}, "min_replicas must be 0 to max_replicas = 4, got 5"),
        (
            {"engine": replace_engine(max_num_batched_tokens=4)},
            "max_num_batched_tokens must be .* = 8, got 4",
        ),
    ],
)
def test_a_setup_that_makes_no_sense_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        replace(Setup(ENGINE), **changes)  # type: ignore[arg-type]


def test_a_pause_in_the_load_is_not_its_end() -> None:
    trace = [TraceRequest(0, 0.0, 10, 2), TraceRequest(1, 300.0, 10, 2)]
    run = Simulation(trace, Setup(ENGINE, give_up_s=30.0)).run()
    assert {RequestEnd.COMPLETED} == set(ends(run).values())
