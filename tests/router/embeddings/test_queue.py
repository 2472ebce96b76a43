"""Groups of inputs in the queue: quotas, deadlines, cancels, preemption by failure, drain. On Redis' own scripts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock import AsyncClient, PenstockClientError, QuotaExceededError
from penstock.v1 import embeddings_pb2, embeddings_pb2_grpc, inference_pb2
from tests.router.embeddings.conftest import pool
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio
TEXTS = [f"text number {number}" for number in range(300)]
"""Three groups."""


def target(stack: Stack, router: int = 0) -> str:
    return f"127.0.0.1:{stack.routers[router].port}"


def sections(**quota: Any) -> dict[str, Any]:
    return {"default_tenant": {"quota": quota}}


async def test_tokens_of_all_groups_are_taken_together(tmp_path: Path, store_url: str) -> None:
    settings = sections(tokens_per_minute=3_000)
    async with (
        running_stack(tmp_path, pools={"vectors": pool("embed")}, redis_url=store_url, sections=settings) as stack,
        AsyncClient(target(stack), timeout=10) as client,
    ):
        used = (await client.embed("vectors", TEXTS[:150])).usage.prompt_tokens
        assert 2 * used < 3_000 < 4 * used
        await client.embed("vectors", TEXTS[150:])
        with pytest.raises(QuotaExceededError):
            await client.embed("vectors", TEXTS)


async def test_a_request_has_no_more_groups_than_a_quota_allows(tmp_path: Path, store_url: str) -> None:
    async with (
        running_stack(
            tmp_path, pools={"vectors": pool("embed")}, redis_url=store_url, sections=sections(concurrency=1)
        ) as stack,
        AsyncClient(target(stack), timeout=10) as client,
    ):
        found = await client.embed("vectors", TEXTS)
        assert (300, 1) == (len(found.vectors), len(found.receipt.attempts))


async def test_groups_go_on_at_another_replica_when_theirs_dies(tmp_path: Path, store_url: str) -> None:
    pools = {"vectors": pool("embed", base_ms=300.0)}
    async with (
        running_stack(tmp_path, pools=pools, redis_url=store_url, replicas=2) as stack,
        AsyncClient(target(stack), timeout=60) as client,
    ):
        wanted = await client.embed("vectors", TEXTS)
        call = asyncio.create_task(client.embed("vectors", TEXTS))
        await until(lambda: all(replica.table.sequences for replica in stack.replicas))
        await stack.kill_replica(0)
        found = await call
        assert wanted.vectors == found.vectors
        assert len(found.receipt.attempts) > 3


async def test_a_cancel_stops_all_groups(tmp_path: Path, store_url: str) -> None:
    pools = {"vectors": pool("embed", base_ms=2_000.0)}
    async with running_stack(tmp_path, pools=pools, redis_url=store_url) as stack:
        stub = embeddings_pb2_grpc.EmbeddingServiceStub(stack.channels[0])
        inputs = [embeddings_pb2.PoolingInput(text=text) for text in TEXTS]
        call = stub.Embed(embeddings_pb2.EmbedRequest(model="vectors", inputs=inputs))
        await until(lambda: stack.replicas[0].table.sequences > 0)
        [request_id] = {name.partition("/")[0] for name, _, _ in stack.replicas[0].table.progress()}
        await stack.inference().Cancel(inference_pb2.CancelRequest(request_id=request_id))
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await call
        assert grpc.StatusCode.CANCELLED is failure.value.code()
        await until(lambda: stack.replicas[0].table.sequences == 0)


async def test_a_deadline_ends_the_call_and_frees_the_engine(tmp_path: Path, store_url: str) -> None:
    pools = {"vectors": pool("embed", base_ms=2_000.0)}
    async with (
        running_stack(tmp_path, pools=pools, redis_url=store_url) as stack,
        AsyncClient(target(stack), timeout=0.5) as client,
    ):
        with pytest.raises(PenstockClientError):
            await client.embed("vectors", TEXTS)
        await until(lambda: stack.replicas[0].table.sequences == 0 and not stack.engines[0].live_ids())
