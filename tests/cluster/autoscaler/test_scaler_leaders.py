"""Several autoscalers for one pool: one leads, and the next one goes on with what it knew."""

from __future__ import annotations

import asyncio

import pytest

from cluster.autoscaler.actuator import Actual
from cluster.autoscaler.metrics import AutoscalerMetrics
from cluster.autoscaler.operating_point import PointRecord
from cluster.autoscaler.router_report import ClassCounts
from cluster.models import Windows
from cluster.queue.heartbeats import ReplicaBeat
from cluster.settings import AutoscalerSettings
from penstock.models import ReplicaState, RequestClass
from penstock.values.slo import ClassSlo, OperatingPoint
from tests.cluster.autoscaler.conftest import Backend
from tests.cluster.autoscaler.scaled_pool import BEAT_S, MODEL, OUTPUT, PROMPT, TICK_S, Site, both


@both
async def test_a_standby_takes_over_with_the_memory_of_the_dead(backend: Backend) -> None:
    site = Site(backend)
    first, second = site.scaler("a"), site.scaler("b")
    await site.run(first, 1)
    await site.run(first, 8, rate=60.0)
    assert first.record is not None
    assert not await second.lead()
    # `a` stands still for longer than its lease.
    await site.live(42, rate=60.0)
    [record] = await site.run(second, 1, rate=60.0)

    assert (2, "b", first.record.number + 1) == (record.fence, record.leader, record.number)
    assert record.replicas == first.record.replicas
    # It knows what was measured before it.
    assert record.cold_start_s == first.record.cold_start_s < 180
    [demand, *_] = record.demands
    assert pytest.approx(60.0, rel=0.15) == demand.rate
    # `a` wakes up in the middle of a tick: what it decides is not stored, and not done.
    told = list(site.platform.told)
    site.platform.target = 1
    assert await first.tick() is None
    assert told == site.platform.told
    assert not await first.lead()


@both
async def test_an_operating_point_survives_a_lost_store_whoever_leads_then(backend: Backend) -> None:
    site = Site(backend)
    first, second = site.scaler("a"), site.scaler("b")
    await site.run(second, 1)
    await second.resign()
    points = [
        PointRecord(OperatingPoint(interactive=ClassSlo(2.0, itl_s)), "ops").to_bytes() for itl_s in (0.012, 0.015)
    ]
    for point in points:
        await backend.store().set_point(point)
        await site.run(first, 1)
        # Whoever stands by asks now and then whether it leads.
        assert not await second.lead()

    backend.forget()
    await site.run(second, 1)
    assert points[-1] == await backend.store().point()


async def test_who_looks_before_the_routers_have_joined_orders_nothing_for_their_past(local: Backend) -> None:
    """The store lost everything, and who led is gone, too."""
    site = Site(local)
    site.counts[RequestClass.INTERACTIVE] = ClassCounts(1e6, 1e6 * PROMPT, 0.0, 1e6 * OUTPUT)
    scaler = site.scaler()
    assert await scaler.lead()
    await scaler.tick()
    records = await site.run(scaler, 8, rate=1.0)

    assert {1} == {record.replicas for record in records}


async def test_a_platform_that_hangs_does_not_cost_the_lease(local: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(local)
    scaler = site.scaler()
    await site.run(scaler, 1)

    async def hang(_pool: str) -> Actual:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(site.platform, "look", hang)
    patience_s = AutoscalerSettings(tick_s=TICK_S, lease_s=0.5).patience_s
    monkeypatch.setattr(scaler._platform, "_patience_s", patience_s)
    await site.live(TICK_S)
    record = await scaler.tick()

    assert record is not None
    assert any("no answer within 0.2 s" in alarm for alarm in record.alarms)


async def test_who_was_deposed_does_not_go_on_saying_what_it_saw_last(local: Backend) -> None:
    site = Site(local)
    first = site.scaler()
    await site.run(first, 1)
    registry = AutoscalerMetrics(lambda: {"demo": first}).registry
    names = [f"penstock_autoscaler_replicas_{name}" for name in ("target", "running", "decided")]
    assert None not in [registry.get_sample_value(name, {"pool": "demo"}) for name in names]
    await first.resign()
    await site.run(site.scaler("b"), 1)
    assert not await first.lead()

    assert [None] * 3 == [registry.get_sample_value(name, {"pool": "demo"}) for name in names]
    assert 0 == registry.get_sample_value("penstock_autoscaler_leading", {"pool": "demo"})


@pytest.mark.slow
async def test_replicas_of_the_cluster_that_takes_over_are_not_counted_as_ours(local: Backend) -> None:
    """Both clusters' replicas are in the pool; what is decided is told to the old one."""
    site = Site(local, replicas=4)
    site.platform.names = site.ready
    scaler = site.scaler()
    await site.run(scaler, 60, rate=40.0)
    before = site.platform.target
    others = [
        ReplicaBeat(f"new{number}", b"", ReplicaState.READY, Windows(64, 10**6, 10**6), (), stats=dict(MODEL))
        for number in range(before)
    ]

    for _ in range(10):
        for _ in range(round(TICK_S / BEAT_S)):
            await site.live(BEAT_S, rate=40.0)
            for other in others:
                await site.queue.heartbeat_replica(other)
        assert await scaler.lead()
        record = await scaler.tick()

    assert record is not None
    assert before == record.ready == site.platform.target
