"""What operators see of a running cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster.autoscaler.decision_record import DecisionRecord
from cluster.autoscaler.store import Commit
from cluster.control.settings import ControlMode
from cluster.queue.heartbeats import PoolView, RouterReport
from penstock.client import AsyncClient, ClusterStatus, DrainReason, PoolStatus, ReplicaState
from penstock.models import RequestClass
from penstock.values.steps import Relief
from router.admin.control import ControlApi
from router.admin.status import class_counters
from tests.cluster.queue.servers import running
from tests.support.stack import Stack, collect, request, running_stack, sim_pool, stream_request
from tests.support.waiting import until

PRICE = 2.5
POOL = {
    **sim_pool(base_ms=4.0, max_num_seqs=8),
    "tensor_parallel_size": 2,
    "price_per_gpu_hour": PRICE,
    "replicas": 3,
    "slo": {"standard": {"itl_p95_s": 20.0, "ttft_p99_s": 30.0}},
    "control": {"period_s": 0.05},
}


@contextlib.asynccontextmanager
async def watched(stack: Stack, router: int = 0) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"127.0.0.1:{stack.routers[router].port}") as client:
        yield client


async def pool_of(client: AsyncClient) -> PoolStatus:
    (pool,) = (await client.cluster_status()).pools
    return pool


async def wait_for(client: AsyncClient, holds: object) -> PoolStatus:
    """Wait until the pool's status is as wanted, and return it."""
    found: list[PoolStatus] = []

    async def looks() -> bool:
        found[:] = [await pool_of(client)]
        return bool(holds(found[0]))  # type: ignore[operator]

    await until(looks)
    return found[0]


def decision(replicas: int) -> bytes:
    made = DecisionRecord(
        at_ms=1_700_000_000_000, leader="a", fence=1, mode=ControlMode.ACTIVE, before=1, replicas=replicas,
        needed=replicas, relief=Relief.LATENCY, reason="more work than fits", steps=(), counterfactuals=(), alarms=(),
        ready=1, starting=2, draining=0, running=8.0, waiting=40.0, kv_usage=0.5, age_s=0.1, cold_start_s=60.0,
        failed_starts=1, attainment=0.9, demands=(),
    )  # fmt: skip
    return made.to_bytes()


async def test_a_replica_tells_its_times_its_hardware_and_its_price(tmp_path: Path) -> None:
    async with running_stack(tmp_path, replicas=2, pools={"demo": POOL}) as stack, watched(stack) as client:
        await asyncio.gather(*(stack.inference().Generate(request(max_tokens=64, ignore_eos=True)) for _ in range(8)))
        pool = await wait_for(client, lambda pool: all(each.itl_p95 > 0 for each in pool.replicas))
        assert 2 == len(pool.replicas)
        for each in pool.replicas:
            # A simulated step takes 4 ms and more.
            assert each.step_time > 0.003
            # A first token that is late makes the gaps behind it shorter than a step.
            assert 0.001 < each.itl_mean <= each.itl_p95
            assert each.up_time > 0 < each.start_time
            assert ("demo", "sim", 2, 2) == (each.model, each.hardware, each.gpus, each.tensor_parallel_size)
            assert 2 * PRICE == each.cost_per_hour
            assert (None, None) == (each.drain_reason, each.draining_for)
            assert (0, False) == (each.engine_waiting, each.overloaded)
        assert 4 * PRICE == pool.cost_per_hour


async def test_what_waits_inside_an_engine_is_seen(tmp_path: Path) -> None:
    """A limit below the running batch lets sequences that the engine already has wait there."""
    pool = {**POOL, "slo": {}, "sim": {**POOL["sim"], "base_ms": 50.0}}
    async with running_stack(tmp_path, pools={"demo": pool}) as stack, watched(stack) as client:
        [engine] = stack.engines
        await engine.set_batch_limits(1, None)
        calls = [stack.inference().Generate(request(max_tokens=40, ignore_eos=True)) for _ in range(4)]
        await wait_for(client, lambda pool: pool.replicas[0].engine_waiting == 3)
        await asyncio.gather(*calls)


async def test_a_pool_shows_its_targets_and_how_many_requests_met_them_at_all_routers(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, pools={"demo": POOL}) as stack, watched(stack) as client:
        await asyncio.gather(*(stack.inference(router).Generate(request()) for router in (0, 0, 1)))
        pool = await wait_for(client, lambda pool: sum(each.judged for each in pool.classes) == 3)
        counts = {each.request_class: (each.requests, each.judged, each.met) for each in pool.classes}
        assert (3, 3, 3) == counts[RequestClass.STANDARD]
        assert (0, 0, 0) == counts[RequestClass.INTERACTIVE] == counts[RequestClass.BATCH]
        slo = pool.operating_point.standard
        assert (20.0, 30.0) == (slo.itl_p95_s, slo.ttft_p99_s)


async def test_replicas_that_are_missing_start_and_the_newest_decision_is_shown(tmp_path: Path) -> None:
    active = {**POOL, "autoscale": {"mode": "active", "max_replicas": 8}}
    async with running_stack(tmp_path, pools={"demo": active}) as stack, watched(stack) as client:
        pool = await pool_of(client)
        assert ("active", 3, 2, None) == (pool.autoscaling, pool.wanted_replicas, pool.starting, pool.last_decision)
        store = stack.control("demo")
        leads = await store.lead("a", 60.0)
        await store.note_failed_start("no GPU is free")
        await store.commit(
            "a", leads.fence, Commit(b"{}", 5, Relief.LATENCY, 4_000_000_000_000, decision(replicas=5), 10)
        )
        pool = await wait_for(client, lambda pool: pool.last_decision and pool.relief is not Relief.NONE)
        assert (5, 4, "no GPU is free") == (pool.wanted_replicas, pool.starting, pool.start_failure)
        assert pool.last_decision is not None
        assert (1, 5) == (pool.last_decision.number, pool.last_decision.replicas)
        await store.close()


async def test_a_replica_that_drains_says_why(tmp_path: Path) -> None:
    pool = {**POOL, "sim": {**POOL["sim"], "base_ms": 20.0}}
    async with running_stack(tmp_path, replicas=2, pools={"demo": pool}) as stack, watched(stack) as client:
        stream = stack.inference().StreamGenerate(stream_request(max_tokens=200, ignore_eos=True))
        busy = await wait_for(client, lambda pool: any(each.running for each in pool.replicas))
        number = next(i for i, each in enumerate(busy.replicas) if each.running)
        leaving = asyncio.create_task(stack.replicas[number].stop(drain_s=30.0))
        status = await wait_for(client, lambda pool: pool.replicas[number].draining_for)
        drains = status.replicas[number]
        assert (ReplicaState.DRAINING, DrainReason.STOPPED) == (drains.state, drains.drain_reason)
        await collect(stream)
        await leaving

        stack.engines[1 - number].die()  # type: ignore[attr-defined]
        status = await wait_for(client, lambda pool: any(each.drain_reason for each in pool.replicas))
        assert [DrainReason.ENGINE_LOST] == [each.drain_reason for each in status.replicas]


async def test_the_status_comes_while_redis_is_away(tmp_path: Path) -> None:
    with running("redis-7.0") as server:
        async with (
            running_stack(tmp_path, pools={"demo": POOL}, redis_url=server.url) as stack,
            watched(stack) as client,
        ):
            assert (await pool_of(client)).classes
            server.process.kill()
            pool = await wait_for(client, lambda pool: not pool.reachable)
            assert (1, ()) == (len(pool.replicas), pool.classes)
            assert pool.unreachable_reason.startswith("the queue does not answer: ")
            assert ["", True] == [pool.replicas[0].link_error, pool.replicas[0].linked]


async def test_many_watchers_cost_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    look = ControlApi.look

    async def counted(self: ControlApi, pool: str) -> object:
        looks.append(pool)
        return await look(self, pool)

    monkeypatch.setattr(ControlApi, "look", counted)
    monkeypatch.setattr("router.admin.status.FRESH_S", 60.0)
    async with running_stack(tmp_path, pools={"demo": POOL}) as stack, watched(stack) as client:
        found: list[ClusterStatus] = await asyncio.gather(*(client.cluster_status() for _ in range(20)))
        assert [3] * 20 == [len(each.pools[0].classes) for each in found]
        assert ["demo"] == looks


def test_a_report_that_cannot_be_read_is_left_out() -> None:
    view = PoolView(0, "", (), (RouterReport("r", 0, b"from the future"),), (0, 0, 0), (0, 0, 0), 0, None, ("r",))
    assert [(0, 0, 0)] * 3 == [(one.requests, one.judged, one.met) for one in class_counters(view)]


def test_every_mode_has_a_name_on_the_wire() -> None:
    from router.admin.control import MODES

    assert set(ControlMode) == set(MODES)
