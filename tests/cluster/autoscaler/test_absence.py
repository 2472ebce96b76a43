"""What is not there for a while: routers, requests, the store in the middle of a takeover."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable
from typing import Any

import pytest

from cluster.announced.arrivals import SILENT_ROUTERS
from cluster.autoscaler.actuator import Actual
from cluster.autoscaler.leader_state import PoolMemory
from cluster.autoscaler.meter import Meter
from cluster.autoscaler.router_report import ClassCounts, Counts
from cluster.control.replica_policy import decide
from cluster.control.replica_rules import GroupBounds
from cluster.control.snapshot import ClassDemand, GroupSnapshot
from cluster.control.step_model import Shape, StepModel
from cluster.errors import QueueUnavailableError
from cluster.models import Windows
from cluster.queue.heartbeats import ReplicaBeat
from cluster.settings import AutoscalerSettings, PoolSettings
from penstock.models import ReplicaState, RequestClass
from penstock.values.slo import ClassSlo, OperatingPoint
from tests.cluster.autoscaler.conftest import Backend
from tests.cluster.autoscaler.scaled_pool import BEAT_S, TICK_S, Site, both


async def without_routers(site: Site, seconds: float) -> None:
    """Let replicas report, and nobody else."""
    for _ in range(round(seconds / BEAT_S)):
        site.backend.clock.advance(BEAT_S)
        now = site.backend.clock.monotonic()
        for name in site.ready:
            stats = {**site.stats, "up_s": now - site.born[name], "kv_usage": 0.3, "largest_batch": 64.0}
            beat = ReplicaBeat(name, b"", ReplicaState.READY, Windows(64, 10**6, 10**6), (), stats=stats)
            await site.queue.heartbeat_replica(beat)


@pytest.mark.slow
@both
async def test_a_router_that_comes_back_is_no_burst(backend: Backend) -> None:
    """Its counters are those since its start, not since it was last heard."""
    site = Site(backend)
    scaler = site.scaler()
    await site.run(scaler, 1)
    [*_, before] = await site.run(scaler, 60, rate=2.0)
    await without_routers(site, TICK_S)
    assert await scaler.lead()
    await scaler.tick()

    after = await site.run(scaler, 12, rate=2.0)
    assert 2.0 == pytest.approx(before.demands[0].rate, rel=0.1)
    assert max(record.demands[0].rate for record in after) < 4.0
    assert before.replicas == max(record.replicas for record in after)


def test_routers_that_are_gone_for_good_are_forgotten() -> None:
    def counts(router: int) -> dict[str, Counts]:
        return {f"r{router}": {RequestClass.INTERACTIVE: ClassCounts(requests=100.0)}}

    meter = Meter()
    for number in range(3 * SILENT_ROUTERS):
        meter = meter.update(float(number), counts(number), 0.0, 60.0)

    assert SILENT_ROUTERS + 1 == len(meter.counters)
    assert f"r{3 * SILENT_ROUTERS - 2}" in meter.counters


@pytest.mark.slow
@both
async def test_a_pool_without_requests_goes_to_zero_in_time(backend: Backend) -> None:
    site = Site(backend, min_replicas=0)
    scaler = site.scaler()
    await site.run(scaler, 4)
    [*_, busy] = await site.run(scaler, 8, rate=5.0)
    quiet = await site.run(scaler, 100)

    assert busy.replicas >= 1
    idle_s = next(TICK_S * (n + 1) for n, record in enumerate(quiet) if record.replicas == 0)
    assert 900 <= idle_s <= 960


@pytest.mark.slow
async def test_a_pool_that_nobody_ever_used_goes_to_zero_too() -> None:
    """Its replica had no steps to learn from, so there is no model."""
    site = Site(local(), min_replicas=0)
    site.stats = {}
    [*_, last] = await site.run(site.scaler(), 70)

    assert 0 == last.replicas


@pytest.mark.slow
async def test_one_request_a_minute_keeps_a_replica() -> None:
    site = Site(local(), min_replicas=0)
    scaler = site.scaler()
    await site.run(scaler, 4)
    records = [
        record for _ in range(20) for record in (*await site.run(scaler, 3), *await site.run(scaler, 1, rate=0.1))
    ]

    assert min(record.replicas for record in records) >= 1


async def test_the_budget_pays_for_every_gpu_of_a_replica() -> None:
    site = Site(local())
    site.settings = PoolSettings.model_validate(
        {
            "engine": "vllm",
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 2,
            "slo": {"interactive": {"ttft_p99_s": 2.0, "itl_p95_s": 0.03}},
            "price_per_gpu_hour": 1.0,
            "budget_per_hour": 12.0,
            "autoscale": {"mode": "active", "max_replicas": 20},
        }
    )
    records = await site.run(site.scaler(), 12, rate=300.0)

    assert 3 == max(record.replicas for record in records)


async def test_a_takeover_that_fails_halfway_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(local())
    first, second = site.scaler("a"), site.scaler("b")
    await site.run(first, 12, rate=60.0)
    await first.resign()
    load = second._store.load

    async def away() -> None:
        raise QueueUnavailableError("timed out")

    monkeypatch.setattr(second._store, "load", away)
    with pytest.raises(QueueUnavailableError):
        await second.lead()
    monkeypatch.setattr(second._store, "load", load)

    assert await second.lead()
    assert first._leader_state.slow.needs == second._leader_state.slow.needs != ()


async def test_a_platform_that_hangs_in_looks_and_in_orders_does_not_cost_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time stands still between calls: only who renews before it orders still leads after both have hung."""
    site = Site(local())
    scaler, other = site.scaler("a"), site.scaler("b")
    await site.run(scaler, 4, rate=60.0)
    lease_s = 0.6
    host = AutoscalerSettings(tick_s=TICK_S, lease_s=lease_s)
    monkeypatch.setattr(scaler, "_host", host)
    monkeypatch.setattr(scaler._platform, "_patience_s", host.patience_s)

    async def hang(*_call: object) -> Actual:
        await asyncio.Event().wait()
        raise AssertionError

    in_time = scaler._platform._in_time

    async def patient(call: Awaitable[Any]) -> Any:
        try:
            return await in_time(call)
        finally:
            # The store's clock goes on as the wall's does.
            site.backend.clock.advance(lease_s / 3)

    monkeypatch.setattr(scaler._platform, "_in_time", patient)
    monkeypatch.setattr(site.platform, "look", hang)
    monkeypatch.setattr(site.platform, "scale", hang)
    await site.live(TICK_S, 60.0)
    assert await scaler.lead()
    await scaler.tick()
    site.backend.clock.advance(lease_s / 3 + 0.05)

    assert scaler.tally.actuator_errors == 2
    assert not await other.lead()
    assert scaler.leading


@pytest.mark.parametrize("through_memory", [False, True])
def test_the_grace_after_a_shortage_is_the_same_where_memory_is_kept(through_memory: bool) -> None:
    """It lies in the future on purpose, which is not a clock that was set back."""
    point = OperatingPoint(interactive=ClassSlo(2.0, 0.03))
    memory, lowered_at = PoolMemory(), 0.0
    for tick in range(1, 120):
        at = TICK_S * tick
        short = 400 <= at < 500
        seen = GroupSnapshot(
            at=at,
            ready=2 if short else 8,
            starting=6 if short else 0,
            demands=(ClassDemand(RequestClass.INTERACTIVE, 100.0, Shape(500, 200)),),
            model=StepModel(0.01, 20e-6, 0.02e-6),
            max_sequences=64,
            running=10.0,
            attainment=0.90 if at >= 400 else 0.995,
            cold_start_s=60.0,
        )
        kept = memory.up_to(at) if through_memory else memory
        made = decide(point, GroupBounds(1, 20), seen, kept.slow)
        if at >= 500 and made.state.fill is not None and made.state.fill != kept.slow.fill:
            lowered_at = at
            break
        memory = dataclasses.replace(kept, slow=made.state)

    assert 495.0 + 600.0 == lowered_at


def local() -> Backend:
    from cluster.clock import ManualClock
    from cluster.redis.in_process.server import InProcessRedis

    clock = ManualClock()
    return Backend(clock, None, InProcessRedis(clock))


@pytest.mark.parametrize("away_s", [90.0, 600.0, 10_800.0])
async def test_what_came_while_nobody_decided_removes_no_replica(local: Backend, away_s: float) -> None:
    """Clients that found no store, or no way in, come back as soon as an autoscaler does."""
    site = Site(local, replicas=8)
    scaler = site.scaler()
    [*_, before] = await site.run(scaler, 40, rate=60.0)
    await site.live(away_s, rate=1.0)

    back = await site.run(scaler, 12, rate=60.0)
    assert back[0].demands[0].rate < before.demands[0].rate / 2
    assert before.replicas <= min(each.replicas for each in back)
    # It goes as before when the time that removal looks back was seen anew.
    later = await site.run(scaler, 20, rate=1.0)
    assert before.replicas > later[-1].replicas


async def test_a_clock_that_jumps_ahead_removes_no_replica(local: Backend) -> None:
    """The requests of some seconds are spread over the time that the clock left out."""
    site = Site(local, replicas=8)
    scaler = site.scaler()
    [*_, before] = await site.run(scaler, 40, rate=60.0)
    local.clock.advance(900.0)

    after = await site.run(scaler, 12, rate=60.0)
    assert after[0].demands[0].rate < before.demands[0].rate / 2
    assert before.replicas <= min(each.replicas for each in after)
