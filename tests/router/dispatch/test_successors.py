"""Two Ray clusters in one pool, as an upgrade on Kubernetes makes them: the older one gets no new work."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deployments.replica.life import RayHome
from penstock.client import AsyncClient
from penstock.models import DrainReason, ReplicaState
from router.server import Router
from tests.router.dispatch.streams import LONG, plain, read_until_held, replica_of
from tests.router.generation.test_resume_state import of_group
from tests.router.links.test_breaker import Flaky, sim_engine
from tests.support.stack import Stack, collect, first_tokens, ids_of, running_stack, sim_pool, stream_request
from tests.support.waiting import until

OLD, NEW = RayHome("penstock-aaaaa", 1_000.0), RayHome("penstock-bbbbb", 2_000.0)
POOLS = {"demo": {**sim_pool(base_ms=5.0), "replicas": 2}}


def takers(router: Router) -> set[str]:
    return set(router.pools["demo"].replicas.connected())


async def told(stack: Stack) -> None:
    """Wait until every router has told the queue on which replicas it takes grants now."""
    for router in stack.routers:
        pool = router.pools["demo"]
        for _ in range(2):
            # The answer to a heartbeat that was on its way says nothing.
            await until(lambda pool=pool, last=pool.beat: pool.beat is not last)


async def used(stack: Stack, requests: int = 12) -> set[int]:
    """Send so many requests at once through every router, and return the replicas that they ran on."""
    await told(stack)
    calls = [
        stack.inference(router).StreamGenerate(stream_request())
        for router in range(len(stack.routers))
        for _ in range(requests)
    ]
    return {replica_of(stack, events) for events in await asyncio.gather(*map(collect, calls))}


async def test_new_work_goes_to_the_newer_cluster_and_running_work_ends_where_it_is(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0, replicas=0, pools=POOLS) as stack:
        for _ in range(2):
            await stack.add_replica(home=OLD)
        await stack.add_router()
        await stack.add_router()
        long = stack.inference().StreamGenerate(stream_request(**LONG))
        begun = await first_tokens(long, 5)
        assert replica_of(stack, begun) in (0, 1)

        # One of two has come: one of the older gives way.
        await stack.add_replica(home=NEW)
        await until(lambda: all(takers(router) == {"demo-r1", "demo-r2"} for router in stack.routers))
        await stack.add_replica(home=NEW)
        await until(lambda: all(takers(router) == {"demo-r2", "demo-r3"} for router in stack.routers))
        assert {2, 3} == await used(stack)

        events = begun + await collect(long)
        assert 300 == events[-1].finished.usage.output_tokens
        assert 1 == len(events[-1].finished.receipt.attempts)
        # Nothing is left on the older ones, so that they can be deleted.
        await until(lambda: all(replica.table.sequences == 0 for replica in stack.replicas[:2]))


async def test_operators_see_why_the_older_ones_drain(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0, replicas=0, pools=POOLS) as stack:
        for home in (OLD, OLD, NEW, NEW):
            await stack.add_replica(home=home)
        router = await stack.add_router()
        await until(lambda: takers(router) == {"demo-r2", "demo-r3"})
        assert 2 == router.pools["demo"].replicas.ready()
        async with AsyncClient(f"127.0.0.1:{router.port}") as client:
            (pool,) = (await client.cluster_status()).pools
        by_id = {each.replica_id: each for each in pool.replicas}
        assert (ReplicaState.DRAINING, DrainReason.SUPERSEDED) == (
            by_id["demo-r0"].state,
            by_id["demo-r0"].drain_reason,
        )
        assert by_id["demo-r0"].draining_for is not None
        assert (ReplicaState.READY, None) == (by_id["demo-r2"].state, by_id["demo-r2"].drain_reason)


async def test_the_older_ones_take_work_again_when_the_newer_cluster_goes(tmp_path: Path) -> None:
    """An upgrade that was taken back."""
    async with running_stack(tmp_path, routers=0, replicas=0, pools=POOLS) as stack:
        for home in (OLD, OLD, NEW, NEW):
            await stack.add_replica(home=home)
        router = await stack.add_router()
        await until(lambda: takers(router) == {"demo-r2", "demo-r3"})
        await asyncio.gather(*(replica.stop(drain_s=0) for replica in stack.replicas[2:]))
        await until(lambda: takers(router) == {"demo-r0", "demo-r1"})
        assert {0, 1} >= await used(stack)


async def test_a_successor_that_is_out_of_reach_replaces_nothing(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0, replicas=0, pools=POOLS) as stack:
        for home in (OLD, OLD, NEW, NEW):
            await stack.add_replica(home=home)
        router = await stack.add_router()
        replicas = router.pools["demo"].replicas
        await until(lambda: takers(router) == {"demo-r2", "demo-r3"})
        for number in (2, 3):
            # The network between them breaks; their leases live on.
            server = stack.replicas[number]._server
            assert server is not None
            await server.stop(0)
        await until(lambda: takers(router) == {"demo-r0", "demo-r1"})
        assert {"demo-r2", "demo-r3"} <= replicas.records.keys()
        assert {0, 1} >= await used(stack)


async def test_with_an_autoscaler_the_newer_cluster_needs_as_many_as_the_older(tmp_path: Path) -> None:
    pools = {"demo": {**POOLS["demo"], "replicas": 1, "autoscale": {"mode": "active", "max_replicas": 4}}}
    async with running_stack(tmp_path, routers=0, replicas=0, pools=pools) as stack:
        for home in (OLD, OLD, NEW):
            await stack.add_replica(home=home)
        router = await stack.add_router()
        await until(lambda: takers(router) == {"demo-r1", "demo-r2"})
        assert {1, 2} >= await used(stack)


async def test_a_successor_that_fails_replaces_nothing_until_it_works(tmp_path: Path) -> None:
    """After its pause it is tried beside the older one: with nobody else, each try would stop the pool."""
    pools = {"demo": {**POOLS["demo"], "replicas": 1}}
    breaker = {"breaker_failures": 3, "breaker_open_s": 60.0, "max_attempts": 20}
    async with running_stack(tmp_path, routers=0, replicas=0, pools=pools, router=breaker) as stack:
        await stack.add_replica(home=OLD)
        flaky = Flaky(sim_engine())
        flaky.broken = False
        await stack.add_replica(engine=flaky, home=NEW)
        router = await stack.add_router()
        replicas = router.pools["demo"].replicas
        await until(lambda: takers(router) == {"demo-r1"})
        flaky.broken = True
        assert {0} == await used(stack)
        assert {"demo-r0"} == takers(router)

        replicas._breakers["demo-r1"]._open_until = 0.0
        await told(stack)
        assert {"demo-r0", "demo-r1"} == takers(router)
        flaky.broken = False

        async def took_over() -> bool:
            await used(stack)
            return takers(router) == {"demo-r1"}

        await until(took_over)


async def test_output_goes_on_at_a_replaced_replica_where_no_other_has_its_weights(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0, replicas=0, pools=POOLS) as stack:
        for _ in range(2):
            await stack.add_replica(home=OLD)
        router = await stack.add_router()
        undisturbed = await plain(stack, **LONG)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until_held(stack, call, 5)
        for _ in range(2):
            await stack.add_replica(engine=of_group(1, context=4_096), home=NEW)
        await until(lambda: takers(router) == {"demo-r2", "demo-r3"})
        number = replica_of(stack, events)
        await stack.kill_replica(number)
        events += await collect(call)
        assert ids_of(undisturbed) == ids_of(events)
        assert 1 - number == replica_of(stack, events)
        # It was kept for that output alone.
        await until(lambda: takers(router) == {"demo-r2", "demo-r3"})


async def test_no_new_work_begins_at_a_replaced_replica_that_is_kept_for_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not be finished anywhere once the older cluster is deleted."""
    async with running_stack(tmp_path, routers=0, replicas=0, pools=POOLS) as stack:
        for _ in range(2):
            await stack.add_replica(home=OLD)
        router = await stack.add_router()
        replicas = router.pools["demo"].replicas
        origin = next(iter(replicas.groups(besides="")))
        for _ in range(2):
            await stack.add_replica(engine=of_group(1, context=4_096), home=NEW)
        await until(lambda: takers(router) == {"demo-r2", "demo-r3"})
        # Output of the older ones waits, and is not placed yet.
        monkeypatch.setattr(replicas, "_origins", lambda: [origin])
        await until(lambda: takers(router) == {"demo-r0", "demo-r1", "demo-r2", "demo-r3"})
        assert {2, 3} == await used(stack)
        monkeypatch.setattr(replicas, "_origins", list)
        await until(lambda: takers(router) == {"demo-r2", "demo-r3"})
