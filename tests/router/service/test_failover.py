"""A cluster over a Redis that sentinels fail over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.router.service.test_limits import refused
from tests.support.sentinels import Sentinels, running_sentinels
from tests.support.stack import collect, ids_of, request, running_stack, stream_request
from tests.support.waiting import until


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    with running_sentinels() as running:
        yield running


async def test_a_failover_disturbs_no_stream_and_new_requests_come_back(tmp_path: Path, sentinels: Sentinels) -> None:
    sim = {"base_ms": 5.0, "max_num_seqs": 2}
    async with running_stack(tmp_path, routers=2, redis_url=sentinels.url, sim=sim) as stack:
        body = stream_request(max_tokens=3_000, ignore_eos=True)
        running = [asyncio.ensure_future(collect(stack.inference(i).StreamGenerate(body))) for i in (0, 1)]
        await until(lambda: stack.replicas[0].table.sequences == 2)
        waiting = stack.inference(1).StreamGenerate(stream_request("Later", max_tokens=5, ignore_eos=True))
        assert (await waiting.read()).HasField("queued")
        # What the replica does not have yet is lost: see the README.
        await asyncio.to_thread(_replicated, sentinels)

        sentinels.primary.kill()
        await until(lambda: not any(router.pools["demo"].available for router in stack.routers))
        code, details = await refused(stack.inference(0).Generate(request(max_tokens=2)))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert details["RetryInfo"].retry_delay.ToTimedelta().total_seconds() > 0

        await until(lambda: all(router.pools["demo"].available for router in stack.routers), 30)
        fresh = asyncio.ensure_future(stack.inference(0).Generate(request("Fresh", max_tokens=5, ignore_eos=True)))
        whole = await asyncio.gather(*running)
        assert [len(ids_of(events)) for events in whole] == [3_000, 3_000]
        assert len(ids_of(await collect(waiting))) == 5
        assert (await fresh).usage.output_tokens == 5
        await until(lambda: stack.replicas[0].table.sequences == 0)
        assert await asyncio.to_thread(_role, sentinels) == "master"


def _replicated(sentinels: Sentinels) -> None:
    with contextlib.closing(sentinels.replica()) as client:
        found = client.scan_iter("*entries")
        assert any(client.hlen(name) == 3 for name in found)


def _role(sentinels: Sentinels) -> str:
    with contextlib.closing(sentinels.replica()) as client:
        return str(client.info("replication")["role"])
