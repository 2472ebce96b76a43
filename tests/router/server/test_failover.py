"""A cluster over a Redis that fails over: by sentinels, or as a Redis Cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.redis.keys import pool_key
from tests.router.server.test_limits import refused
from tests.support.redis_clusters import RedisCluster, running_redis_cluster
from tests.support.sentinels import Sentinels, running_sentinels
from tests.support.stack import collect, ids_of, request, running_stack, stream_request
from tests.support.waiting import until, until_sync


@pytest.fixture(params=["sentinels", "cluster"])
def servers(request: pytest.FixtureRequest) -> Iterator[Sentinels | RedisCluster]:
    if request.param == "sentinels":
        with running_sentinels() as sentinels:
            yield sentinels
    else:
        with running_redis_cluster(pool_key("demo", "pool")) as cluster:
            yield cluster


async def test_a_failover_disturbs_no_stream_and_new_requests_come_back(
    tmp_path: Path, servers: Sentinels | RedisCluster
) -> None:
    sim = {"base_ms": 5.0, "max_num_seqs": 2}
    # A lease that is longer than the failover would hide it.
    lease = {"lease_s": 1.0}
    async with running_stack(tmp_path, routers=2, redis_url=servers.url, sim=sim, queue=lease) as stack:
        body = stream_request(max_tokens=2_000, ignore_eos=True)
        running = [asyncio.ensure_future(collect(stack.inference(i).StreamGenerate(body))) for i in (0, 1)]
        await until(lambda: stack.replicas[0].table.sequences == 2)
        waiting = stack.inference(1).StreamGenerate(stream_request("Later", max_tokens=5, ignore_eos=True))
        assert (await waiting.read()).HasField("queued")
        # A failover loses what the replica does not have yet: see router/README.md.
        await asyncio.to_thread(_replicated, servers)

        servers.primary.kill()
        refusals: list[dict[str, Any]] = []

        async def noticed(number: int) -> None:
            """Wait until a router has lost its lease."""
            await until(lambda: not stack.routers[number].pools["demo"].available)

        async def looked() -> bool:
            """Note what those say who have lost their leases. They may be back by that time."""
            for number, router in enumerate(stack.routers):
                if not router.pools["demo"].available:
                    with contextlib.suppress(grpc.aio.AioRpcError, AssertionError):
                        code, details = await refused(
                            stack.inference(number).Generate(request(max_tokens=2), timeout=2)
                        )
                        if code is grpc.StatusCode.UNAVAILABLE:
                            refusals.append(details)
            return bool(refusals)

        # At the same time: an answer may take longer than the other router is away.
        await asyncio.gather(until(looked), noticed(0), noticed(1))
        assert all(each["RetryInfo"].retry_delay.ToTimedelta().total_seconds() > 0 for each in refusals)

        await until(lambda: all(router.pools["demo"].available for router in stack.routers), 30)
        fresh = asyncio.ensure_future(stack.inference(0).Generate(request("Fresh", max_tokens=5, ignore_eos=True)))
        whole = await asyncio.gather(*running)
        assert [len(ids_of(events)) for events in whole] == [2_000, 2_000]
        assert len(ids_of(await collect(waiting))) == 5
        assert (await fresh).usage.output_tokens == 5
        await until(lambda: stack.replicas[0].table.sequences == 0)
        assert await asyncio.to_thread(_role, servers) == "master"


def _replicated(servers: Sentinels | RedisCluster) -> None:
    """Wait until the replica has all three requests."""
    with contextlib.closing(servers.replica()) as client:
        if isinstance(servers, RedisCluster):
            client.readonly()
        until_sync(lambda: any(client.hlen(name) == 3 for name in client.scan_iter("*entries")))


def _role(servers: Sentinels | RedisCluster) -> str:
    with contextlib.closing(servers.replica()) as client:
        return str(client.info("replication")["role"])
