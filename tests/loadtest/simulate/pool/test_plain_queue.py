"""The twin of the queue chooses as the scripts do, and is used only where it does."""

from __future__ import annotations

import random
from dataclasses import replace
from importlib.resources import files

import pytest

from cluster.queue.entries import QueueLimits
from cluster.settings import AffinitySettings, SimSettings
from cluster.standby.rule import StandbyLimits
from loadtest.simulate.autoscalers.contract import FastFactory, ReplicaSnapshot
from loadtest.simulate.autoscalers.penstock import PenstockFast, model_of, penstock_slow, point_of
from loadtest.simulate.pool import plain_queue
from loadtest.simulate.pool.outcome import RequestEnd, SimulatedRun
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.setup import Death, Setup, Slo
from loadtest.traces import TraceRequest
from penstock.models import RequestClass
from router.affinity import Affinity


def drawn(seed: int, requests: int = 250) -> tuple[list[TraceRequest], Setup]:
    """Draw a load and a cluster that is full at times: in slots, KV cache or prefill window."""
    rnd = random.Random(seed)
    engine = SimSettings(
        base_ms=rnd.choice([5.0, 20.0]),
        per_token_us=40.0,
        per_kv_token_us=0.1,
        kv_tokens=rnd.choice([2_000, 6_000, 40_000]),
        max_num_seqs=rnd.choice([2, 5, 16]),
        max_num_batched_tokens=rnd.choice([32, 128, 512]),
    )
    longest = rnd.choice([100, 700, 1_200])
    trace, at, rate = [], 0.0, rnd.choice([4.0, 12.0, 40.0])
    for number in range(requests):
        trace.append(TraceRequest(number, at, rnd.randint(1, longest), rnd.randint(1, 80)))
        at += rnd.expovariate(rate) if rnd.random() < 0.98 else 100.0 * rnd.random()
    setup = Setup(
        engine,
        replicas=rnd.randint(1, 13),
        max_replicas=20,
        limits=QueueLimits(max_waiting=rnd.choice([5, 60, 100_000]), lookahead=rnd.choice([1, 3, 16])),
        expected_output_tokens=rnd.choice([16, 256]),
        default_class=rnd.choice([RequestClass.INTERACTIVE, RequestClass.STANDARD]),
        cold_start_s=rnd.choice([3.0, 20.0]),
        slow_period_s=5.0,
        late_last=rnd.random() < 0.8,
        slo=Slo(rnd.choice([0.2, 1.0, 4.0]), 0.1),
        seed=seed,
        standby=StandbyLimits(0, rnd.choice([0, 3]), 0.3, 2.0),
    )
    return trace, setup


class Wandering:
    """A batch policy that moves the limit, and so the windows."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def decide(self, snapshot: ReplicaSnapshot) -> int:
        return self._random.randint(1, snapshot.largest_limit)


def both(trace: list[TraceRequest], setup: Setup, policy: str) -> tuple[SimulatedRun, SimulatedRun]:
    """Run a cluster with the scripts and with the twin."""

    def run(scripts: bool) -> SimulatedRun:
        now, point = replace(setup, scripts=scripts), point_of({setup.default_class: setup.slo})
        fast: dict[str, FastFactory] = {
            "wandering": lambda: Wandering(setup.seed),
            "penstock": lambda: PenstockFast(point, model_of(setup)),
        }
        slow = penstock_slow(now, point) if policy == "penstock" else None
        return Simulation(trace, now, fast=fast.get(policy), slow=slow).run()

    return run(True), run(False)


@pytest.mark.parametrize("policy", ["static", "wandering", "penstock"])
@pytest.mark.parametrize("seed", range(8))
def test_the_twin_makes_the_same_run_as_the_scripts(seed: int, policy: str) -> None:
    """To the last bit: every request, every sample, every change of the number of replicas."""
    scripts, twin = both(*drawn(100 * len(policy) + seed), policy)
    assert (True, True) == ("scripts" in scripts.queue, "twin" in twin.queue)
    assert repr(list(scripts.outcomes)) == repr(list(twin.outcomes))
    assert scripts.samples == twin.samples
    assert scripts.fleet.changes == twin.fleet.changes
    assert scripts.seconds == twin.seconds


@pytest.mark.parametrize("seed", range(3))
def test_the_twin_takes_back_what_a_pool_sheds_as_the_scripts_do(seed: int) -> None:
    """A pool that can't grow refuses requests that would wait too long, once they are in line."""
    rnd = random.Random(seed)
    engine = SimSettings(
        base_ms=20.0, kv_tokens=rnd.choice([3_000, 40_000]), max_num_seqs=4, max_num_batched_tokens=128
    )
    trace = [TraceRequest(n, 0.08 * n, rnd.randint(1, 700), rnd.randint(20, 80)) for n in range(900)]
    setup = Setup(engine, replicas=2, max_replicas=2, slow_period_s=5.0, slo=Slo(2.0, 0.2), seed=seed)
    scripts, twin = both(trace, setup, "penstock")
    assert int(scripts.outcomes.ended(RequestEnd.REJECTED).sum()) > 20
    assert repr(list(scripts.outcomes)) == repr(list(twin.outcomes))
    assert scripts.samples == twin.samples


def test_bounds_are_those_of_the_scripts() -> None:
    text = (files("cluster.queue.redis") / "lua" / "names.lua").read_text()
    for name in (
        "GRANTS_PER_REPLICA",
        "GRANTS_PER_CALL",
        "REPLICAS_TRIED",
        "LATE_PER_CALL",
        "LATE_LEAST",
        "LATE_PER_MS",
    ):
        assert f"\n{name} = {getattr(plain_queue, f'_{name}')} --" in text


def test_scripts_run_where_the_twin_would_choose_otherwise() -> None:
    trace, setup = drawn(1, requests=20)
    setup = replace(setup, replicas=2, slo=Slo())

    def used(trace: list[TraceRequest] = trace, affinity: bool = False, **changes: object) -> str:
        made = (lambda: Affinity(AffinitySettings())) if affinity else None
        return Simulation(trace, replace(setup, **changes), affinity=made).run().queue  # type: ignore[arg-type]

    assert "twin" in used()
    assert "scripts" in used(scripts=True)
    assert "scripts" in used(routers=2)
    assert "scripts" in used(queue_timeout_s=30.0)
    assert "scripts" in used(deaths=(Death(1.0),))
    assert "scripts" in used(affinity=True)
    assert "scripts" in used(default_class=RequestClass.BATCH)
    assert "scripts" in used([replace(each, tenant=f"t{each.number % 2}") for each in trace])
    assert "scripts" in used([replace(each, request_class=RequestClass(each.number % 2)) for each in trace])
