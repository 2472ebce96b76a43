"""An alias moves from one pool to another under load, replica by replica, as when a pool gets another image."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from penstock.client import AsyncClient, RegistryEdit
from tests.support.stack import Stack, collect, first_tokens, running_stack, sim_pool, stream_request
from tests.support.traffic import traffic
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

OLD, NEW = "large-a", "large-b"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    pools = {OLD: sim_pool(max_num_seqs=4), NEW: sim_pool(max_num_seqs=4)}
    folder: Path = tmp_path_factory.mktemp("stack")
    sections = {"aliases": {"large": {"targets": [{"model": OLD}], "sticky": "none"}}}
    async with running_stack(folder, routers=2, replicas=0, pools=pools, sections=sections) as running:
        for _ in range(2):
            await running.add_replica(OLD)
        yield running


def served(stack: Stack) -> Counter[str]:
    """Count the requests that the routers gave to each pool by way of the alias."""
    found = Counter[str]()
    for router in stack.routers:
        for family in router._metrics.registry.collect():
            if family.name == "penstock_alias_requests":
                for each in family.samples:
                    if each.name.endswith("_total"):
                        found[each.labels["model"]] += int(each.value)
    return found


async def more(stack: Stack, pool: str, requests: int = 12) -> None:
    """Wait until a pool got so many further requests."""
    wanted = served(stack)[pool] + requests
    await until(lambda: served(stack)[pool] >= wanted, 30)


async def lead(admin: AsyncClient, **weights: float) -> None:
    """Lead the alias to pools; every router knows when this returns."""
    names = {"old": OLD, "new": NEW}
    targets = [{"model": names[name], "weight": weight} for name, weight in weights.items()]
    value = {"targets": targets, "sticky": "none"}
    assert () == (await admin.edit_registry([RegistryEdit("alias", "large", value)], wait=60)).behind


async def test_an_alias_moves_to_another_pool_replica_by_replica_and_no_request_fails(stack: Stack) -> None:
    """Never more than two replicas run: one of the old pool ends before the next of the new pool starts."""
    first, second = stack.replicas
    # Routers learn a pool's tokenizer from its replicas, so no alias may lead to a pool before it has one.
    with pytest.raises(grpc.aio.AioRpcError, match="no replica of 'large-b' has reported yet") as told:
        await collect(stack.inference().StreamGenerate(stream_request("early", model=NEW)))
    assert grpc.StatusCode.UNAVAILABLE is told.value.code()
    call = stack.inference().StreamGenerate(stream_request("long", model="large", max_tokens=600, ignore_eos=True))
    began = await first_tokens(call, 3)
    long = asyncio.create_task(collect(call))
    async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as admin, traffic(stack, 6, model="large") as load:
        await more(stack, OLD)
        await first.stop(drain_s=20)
        await stack.add_replica(NEW)
        await lead(admin, old=1, new=1)
        await asyncio.gather(more(stack, OLD), more(stack, NEW))
        await lead(admin, new=1)
        # What the old pool has goes on to its end.
        await until(lambda: not any(router.pools[OLD].active for router in stack.routers), 60)
        before = served(stack)[OLD]
        await second.stop(drain_s=20)
        await stack.add_replica(NEW)
        await more(stack, NEW)
        assert before == served(stack)[OLD]
    assert [] == load.failures
    events = [*began, *await long]
    assert 600 == sum(len(event.delta.token_ids) for event in events if event.HasField("delta"))


async def test_an_alias_moves_back_to_a_pool_whose_replica_comes_later_and_no_request_fails(stack: Stack) -> None:
    """Routers that have known a replica of the pool let requests wait for the next one."""
    for replica in stack.replicas:
        if not replica.stopped:
            await replica.stop(drain_s=20)
    await stack.add_replica(OLD)
    old = stack.replicas[-1]
    async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as admin:
        await lead(admin, old=1)
        async with traffic(stack, 4, model="large") as load:
            await more(stack, OLD)
            await lead(admin, new=1)
            await until(lambda: not any(router.pools[OLD].active for router in stack.routers), 60)
            await until(lambda: 4 == sum(router.pools[NEW].active for router in stack.routers), 30)
            await old.stop(drain_s=20)
            await stack.add_replica(NEW)
            await more(stack, NEW)
    assert [] == load.failures
