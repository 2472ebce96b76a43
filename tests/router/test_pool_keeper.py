"""Pools that come and go over two running routers, with the launcher and replicas of simulated engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from cluster.errors import NoReplicaError
from cluster.registry.contract import Author, Edit, Watcher
from cluster.registry.view import RegistryView
from deployments.engines.sim.engine import SimEngine
from penstock.client import (
    AsyncClient,
    GenerateOptions,
    InvalidArgumentError,
    JobItem,
    JobState,
    NotFoundError,
    RegistryEdit,
)
from tests.support.launching import Machine, launching
from tests.support.stack import Stack, collect, first_tokens, running_stack, sim_pool, stream_request
from tests.support.traffic import traffic
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(
        tmp_path_factory.mktemp("stack"), routers=2, pools={"demo": sim_pool()}, jobs={"in_flight": 2}
    ) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def machine(stack: Stack) -> AsyncIterator[Machine]:
    async with launching(stack) as running:
        yield running


def engine_of(machine: Machine, name: str) -> SimEngine:
    """Return the engine of a pool with one replica."""
    [replica] = machine.places[name].replicas.values()
    assert isinstance(replica._engine, SimEngine)
    return replica._engine


@pytest_asyncio.fixture(loop_scope="module")
async def admin(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as client:
        await until(lambda: launcher_seen(client))
        yield client


async def launcher_seen(client: AsyncClient) -> bool:
    try:
        await client.edit_registry([added("probe")], dry_run=True)
    except InvalidArgumentError:
        return False
    return True


def added(name: str, **sim: Any) -> RegistryEdit:
    return RegistryEdit("pool", name, {"settings": sim_pool(**sim)})


def removed(name: str) -> RegistryEdit:
    return RegistryEdit("pool", name, {"removed": True})


async def serves(stack: Stack, name: str) -> None:
    """Wait until every router has a link to a replica of a pool."""
    for router in stack.routers:
        await until(lambda router=router: name in router.pools and bool(router.pools[name].replicas.connected()), 20)


async def gone(stack: Stack, name: str) -> None:
    await until(lambda: all(name not in router.pools for router in stack.routers), 20)


async def test_a_pool_is_added_and_removed_under_load_and_no_request_is_lost(
    stack: Stack, machine: Machine, admin: AsyncClient
) -> None:
    async with traffic(stack, clients=4, pause_s=0.01) as load:
        assert () == (await admin.edit_registry([added("more", base_ms=20.0, max_num_seqs=1)], wait=10)).behind
        await serves(stack, "more")
        # The pool would be gone before all is said of it.
        engine_of(machine, "more").wedge()
        # One runs at each router's call, and the others wait in line.
        calls = [
            stack.inference(number % 2).StreamGenerate(
                stream_request(f"number {number}", model="more", max_tokens=20, ignore_eos=True)
            )
            for number in range(4)
        ]
        ends = [asyncio.create_task(collect(call)) for call in calls]
        await until(lambda: sum(router.pools["more"].active for router in stack.routers) == 4)
        assert () == (await admin.edit_registry([removed("more")], wait=10)).behind
        for number in range(2):
            with pytest.raises(grpc.aio.AioRpcError, match="'more' is being removed and takes no new requests") as told:
                await collect(stack.inference(number).StreamGenerate(stream_request("late", model="more")))
            assert grpc.StatusCode.NOT_FOUND is told.value.code()
        engine_of(machine, "more")._moving.set()
        for events in await asyncio.gather(*ends):
            assert 20 == sum(len(event.delta.token_ids) for event in events if event.HasField("delta"))
        await gone(stack, "more")
    assert [] == load.failures
    with pytest.raises(NotFoundError, match="'more' is not served here; known models: demo"):
        await admin.generate("more", "x")
    (entry,) = await admin.registry("pool", name="more")
    assert "gone" == entry.state


async def test_a_stream_of_a_pool_that_goes_can_be_resumed(stack: Stack, machine: Machine, admin: AsyncClient) -> None:
    await admin.edit_registry([added("brief", base_ms=30.0)], wait=10)
    await serves(stack, "brief")
    sampling, keyed = {"max_tokens": 30, "ignore_eos": True}, GenerateOptions(idempotency_key="k1")
    first = asyncio.create_task(admin.generate("brief", "x", sampling, keyed))
    await until(lambda: stack.routers[0].pools["brief"].active == 1)
    engine_of(machine, "brief").wedge()
    await admin.edit_registry([removed("brief")], wait=10)
    # Two clients of one key would take it from each other.
    first.cancel()
    async with AsyncClient(f"127.0.0.1:{stack.routers[1].port}") as other:
        resumed = asyncio.create_task(other.generate("brief", "x", sampling, keyed))
        await until(lambda: stack.routers[1].pools["brief"].active == 1)
        engine_of(machine, "brief")._moving.set()
        again = await resumed
    assert 30 == again.usage.output_tokens
    assert 1 == len(again.receipt.attempts)
    await gone(stack, "brief")


async def test_no_connection_is_left_of_a_pool_that_is_gone(stack: Stack, admin: AsyncClient) -> None:
    await admin.edit_registry([added("watched")], wait=10)
    await serves(stack, "watched")
    await admin.generate("watched", "x", {"max_tokens": 1})
    await admin.cluster_status()
    router = stack.routers[0]
    records, control = router._parts.records, router._parts.control_api
    await until(lambda: "watched" in records._stores and "watched" in control._queues)
    await admin.edit_registry([removed("watched")], wait=10)
    await gone(stack, "watched")
    await until(lambda: "watched" not in {*records._stores, *control._stores, *control._queues})


async def test_what_comes_back_to_a_pool_without_replicas_is_told_so_and_not_put_in_line(tmp_path: Path) -> None:
    """Its place in line was lost, and the pool may be left while it is put in line again."""
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 20.0}) as alone:
        asked = stream_request(max_tokens=50, ignore_eos=True)
        call = alone.inference(0).StreamGenerate(asked)
        asked.resume.resume_token = (await first_tokens(call, 1))[0].started.resume_token
        await alone.kill_replica(0)
        here, there = (router.pools["demo"] for router in alone.routers)
        await until(lambda: [choice.state.waits for choice in here.choices.snapshot()] == [True])
        here.closing = there.closing = True
        for choice in here.choices.snapshot():
            choice.give_up(NoReplicaError.removed("demo"))
        with pytest.raises(grpc.aio.AioRpcError, match="pool 'demo' was removed") as told:
            await collect(alone.inference(1).StreamGenerate(asked))
        assert grpc.StatusCode.UNAVAILABLE is told.value.code()
        await there.close()
        # What is told after the router has left the pool has no effect, and does no harm.
        there.releases.withdraw("another", None)


async def test_a_job_waits_for_its_pool_to_come_back(stack: Stack, admin: AsyncClient) -> None:
    await admin.edit_registry([added("night", base_ms=20.0, max_num_seqs=2)], wait=10)
    await serves(stack, "night")
    items = [JobItem(str(number), f"prompt {number}", {"max_tokens": 8, "ignore_eos": True}) for number in range(80)]
    job = await admin.submit_job("night", items)

    async def begun() -> bool:
        return (await admin.get_job(job.job_id)).succeeded_items > 0

    await until(begun, 20)
    await admin.edit_registry([removed("night")], wait=10)
    await gone(stack, "night")
    left = await admin.get_job(job.job_id)
    assert left.succeeded_items < 80
    assert 0 == left.failed_items
    await admin.edit_registry([added("night", base_ms=1.0)], wait=10)

    async def ended() -> bool:
        return (await admin.get_job(job.job_id)).state is JobState.SUCCEEDED

    await until(ended, 30)
    assert (80, 0) == ((found := await admin.get_job(job.job_id)).succeeded_items, found.failed_items)


async def test_what_is_left_when_the_replicas_of_a_removed_pool_have_gone_ends_and_jobs_are_given_back(
    stack: Stack, admin: AsyncClient
) -> None:
    settings = {**sim_pool(base_ms=50.0, max_num_seqs=1), "rollout": {"drain_s": 0}}
    await admin.edit_registry([RegistryEdit("pool", "short", {"settings": settings})], wait=10)
    await serves(stack, "short")
    long = {"max_tokens": 900, "ignore_eos": True}
    calls = [
        collect(stack.inference(number).StreamGenerate(stream_request("long", model="short", **long)))
        for number in range(2)
    ]
    ends = [asyncio.create_task(call) for call in calls]
    await until(lambda: sum(router.pools["short"].active for router in stack.routers) == 2)
    job = await admin.submit_job("short", [JobItem(str(number), "prompt", long) for number in range(3)])
    await until(lambda: sum(router.pools["short"].active for router in stack.routers) > 2)
    await admin.edit_registry([removed("short")], wait=10)
    with pytest.raises(InvalidArgumentError, match="'short' is being removed; wait until it has gone"):
        await admin.edit_registry([added("short")], dry_run=True)
    for end in ends:
        with pytest.raises(grpc.aio.AioRpcError, match="pool 'short' was removed") as told:
            await asyncio.wait_for(end, 30)
        assert grpc.StatusCode.UNAVAILABLE is told.value.code()
    await gone(stack, "short")
    left = await admin.get_job(job.job_id)
    assert (0, 0) == (left.succeeded_items, left.failed_items)


async def test_a_pool_that_comes_again_between_two_looks_is_another_one_on_every_router(
    stack: Stack, admin: AsyncClient
) -> None:
    await admin.edit_registry([added("priced")], wait=10)
    await serves(stack, "priced")
    before = [router.pools["priced"] for router in stack.routers]
    view = RegistryView(stack.registry(), Watcher("elsewhere", "router"))
    # It was removed and added between two looks of the routers.
    value = json.dumps({"settings": {**sim_pool(), "price_per_gpu_hour": 7.0}}).encode()
    await view.apply([Edit("pool", "priced", value)], Author("ops"))
    await view.close()
    for router, old in zip(stack.routers, before, strict=True):
        await until(lambda router=router, old=old: router.pools.get("priced") not in (None, old))
        assert 7.0 == router.pools["priced"].settings.price_per_gpu_hour

    async def serving() -> bool:
        return [one.state for one in await admin.registry("pool", name="priced")] == ["serving"]

    await until(serving)
    await serves(stack, "priced")
    await admin.edit_registry([removed("priced")], wait=10)
    await gone(stack, "priced")


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (removed("demo"), "must leave at least one pool"),
        (removed("other"), "must be one of .*demo.*, got 'other'"),
        (RegistryEdit("pool", "demo", None), "removed = true removes a pool"),
        (RegistryEdit("pool", "demo", {"settings": sim_pool(base_ms=9.0)}), r"settings.sim: can't change here"),
        (RegistryEdit("pool", "more", {"settings": {"engine": "vllm"}}), r"settings.engine: must be 'sim', got 'vllm'"),
        (RegistryEdit("pool", "more", {"settings": {"engine": "sim", "colour": 1}}), "colour: unknown setting"),
    ],
)
async def test_what_cannot_be_done_is_said(stack: Stack, admin: AsyncClient, edit: RegistryEdit, text: str) -> None:
    del stack
    if "at least one" in text:
        others = [one.name for one in await admin.registry("pool") if not one.value.get("removed")]
        edits = [removed(name) for name in others]
    else:
        edits = [edit]
    with pytest.raises(InvalidArgumentError, match=text):
        await admin.edit_registry(edits)


async def test_a_pool_that_an_alias_names_stays(stack: Stack, admin: AsyncClient) -> None:
    del stack
    alias = RegistryEdit("alias", "fast", {"targets": [{"model": "demo"}]})
    await admin.edit_registry([alias, added("spare")], wait=10)
    with pytest.raises(InvalidArgumentError, match="alias 'fast' sends requests to the pool 'demo'"):
        await admin.edit_registry([removed("demo")])
    with pytest.raises(InvalidArgumentError, match="'fast' is an alias"):
        await admin.edit_registry([added("fast")])


async def test_without_a_process_that_starts_replicas_pools_stay_as_they_are(tmp_path: Path) -> None:
    async with (
        running_stack(tmp_path, replicas=0) as alone,
        AsyncClient(f"127.0.0.1:{alone.routers[0].port}") as client,
    ):
        with pytest.raises(InvalidArgumentError, match="change `pools` in the chart's values"):
            await client.edit_registry([added("more")])
