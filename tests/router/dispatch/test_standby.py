"""Standbys in a whole cluster: routers, queue, replicas with simulated engines, and the autoscaler that orders them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cluster.autoscaler.actuator import Actual
from cluster.autoscaler.autoscaler import Autoscaler, AutoscalerStores
from penstock.client import AsyncClient, PoolStatus, ReplicaState
from tests.support.stack import SECRET, Stack, request, running_stack, sim_pool
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

POOL = {
    **sim_pool(base_ms=10.0, max_num_seqs=4),
    "replicas": 3,
    "slo": {"interactive": {"ttft_p99_s": 0.5}, "standard": {"ttft_p99_s": 0.5}},
    # Everything happens within moments here.
    "autoscale": {
        "mode": "active",
        "min_replicas": 1,
        "max_replicas": 3,
        "standby": 2,
        "standby_price": 0.1,
        "cold_start_s": 60.0,
        "hold_s": 0.0,
        "look_back_s": 1.0,
        "down_window_s": 1.0,
        "rate_window_s": 1.0,
    },
}


class Fixed:
    """A platform whose replicas neither come nor go."""

    def __init__(self) -> None:
        self.told: list[int] = []

    async def look(self, pool: str) -> Actual:
        return Actual(3, 3)

    async def scale(self, pool: str, replicas: int) -> None:
        self.told.append(replicas)


class Standing:
    """A cluster with its platform, and a client."""

    def __init__(self, stack: Stack, platform: Fixed, client: AsyncClient) -> None:
        self.stack = stack
        self.platform = platform
        self.client = client

    async def pool(self) -> PoolStatus:
        [found] = (await self.client.cluster_status()).pools
        return found

    async def count(self, state: ReplicaState) -> int:
        return sum(each.state is state for each in (await self.pool()).replicas)

    async def asleep(self) -> set[str]:
        return {each.replica_id for each in (await self.pool()).replicas if each.asleep}

    async def settles(self, state: ReplicaState, number: int) -> None:
        async def reached() -> bool:
            return await self.count(state) == number

        await until(reached, 60.0)


@pytest_asyncio.fixture
async def standing(tmp_path: Path) -> AsyncIterator[Standing]:
    sections = {"autoscaler": {"tick_s": 0.2, "lease_s": 5.0}}
    async with running_stack(tmp_path, replicas=3, pools={"demo": POOL}, sections=sections) as stack:
        platform = Fixed()
        stores = AutoscalerStores(queue=stack.queue, control=stack.control)
        autoscaler = Autoscaler(stack.settings, SECRET, stores, platform)
        await autoscaler.start()
        try:
            async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as client:
                yield Standing(stack, platform, client)
        finally:
            await autoscaler.stop()


async def test_replicas_sleep_without_work_and_wake_under_load(standing: Standing) -> None:
    await standing.settles(ReplicaState.STANDBY, 2)

    async def all_asleep() -> bool:
        return len(await standing.asleep()) == 2

    await until(all_asleep)

    async def shown() -> bool:
        """What routers show is some moments old."""
        pool = await standing.pool()
        made = pool.last_decision
        assert made is not None
        return (1, 0, 1, 2) == (pool.wanted_replicas, pool.starting, made.replicas, made.standby)

    await until(shown)
    pool = await standing.pool()
    sleepers = {each.replica_id for each in pool.replicas if each.asleep}
    # Links stay up, so that a replica that wakes has work at once.
    assert all(each.linked for each in pool.replicas)

    calls = [standing.stack.inference().Generate(request(max_tokens=150, ignore_eos=True)) for _ in range(60)]
    answers = await asyncio.gather(*calls)
    used = {attempt.replica_id for answer in answers for attempt in answer.receipt.attempts}
    assert used & sleepers
    assert 60 == len(answers)

    await standing.settles(ReplicaState.STANDBY, 2)
    woken = [each for each in (await standing.pool()).replicas if each.replica_id in used & sleepers]
    assert all(each.wake_time is not None for each in woken)
    # Their number never changed: nothing was started and nothing removed.
    assert not standing.platform.told


async def test_a_standby_whose_engine_is_dead_is_replaced_by_the_next_one(standing: Standing) -> None:
    await standing.settles(ReplicaState.STANDBY, 2)
    [serving] = [each.replica_id for each in (await standing.pool()).replicas if each.state is ReplicaState.READY]
    number = next(n for n, one in enumerate(standing.stack.replicas) if one.plan.replica_id == serving)
    await standing.stack.kill_replica(number)

    async def another_serves() -> bool:
        ready = [each.replica_id for each in (await standing.pool()).replicas if each.state is ReplicaState.READY]
        return bool(ready) and serving not in ready

    await until(another_serves, 60.0)
    answer = await standing.stack.inference().Generate(request())
    assert serving not in {attempt.replica_id for attempt in answer.receipt.attempts}
