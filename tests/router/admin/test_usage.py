"""The ledger, as tenants and operators read it, against receipts and what the engines counted themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from penstock.v1 import admin_pb2
from tests.cluster.queue.servers import running
from tests.router.identity.test_calls import refusal
from tests.support.keys import Keys, bearer
from tests.support.stack import Stack, collect, request, running_stack, sim_pool, stream_request
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

OUTPUT_PRICE = 2.0
"""Per million."""
GPU_PRICE = 3.6
"""Per hour, so a thousandth per second."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest.fixture(scope="module", params=["in-process", "redis-7.0", "redis-cluster"])
def redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The store's address; empty for Redis in process."""
    with contextlib.nullcontext() if request.param == "in-process" else running(request.param) as server:
        yield server.url if server is not None else ""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, keys: Keys, redis_url: str) -> AsyncIterator[Stack]:
    prices = {"price_per_million_output_tokens": OUTPUT_PRICE, "price_per_gpu_hour": GPU_PRICE}
    pool = {**sim_pool(base_ms=4.0, max_num_seqs=4), "tensor_parallel_size": 2, **prices}
    folder = tmp_path_factory.mktemp("stack")
    sections = {"auth": {"keys_file": str(keys.path)}}
    async with running_stack(
        folder, routers=2, replicas=2, pools={"demo": pool}, redis_url=redis_url, sections=sections
    ) as running_:
        yield running_


async def usage(stack: Stack, key: str, router: int = 0, **asked: Any) -> Sequence[admin_pb2.UsageLine]:
    reply = await stack.admin(router).GetUsage(admin_pb2.GetUsageRequest(**asked), metadata=bearer(key))
    assert not reply.truncated
    return reply.lines


async def cut_short(stack: Stack, key: str, router: int) -> None:
    """Begin a long generation and leave in the middle."""
    call = stack.inference(router).StreamGenerate(stream_request(max_tokens=5_000), metadata=bearer(key))
    while not (await call.read()).HasField("delta"):
        pass
    call.cancel()


async def settled(stack: Stack) -> None:
    """Wait until every slot is given back."""
    await until(lambda: not any(replica.table.sequences for replica in stack.replicas))
    # Routers release a moment later; what they know of it comes with a beat that began after the engines were done.
    pools = [router.pools["demo"] for router in stack.routers]
    seen = [pool.beat for pool in pools]
    await until(
        lambda: all(pool.beat is not old and not pool.beat.running for pool, old in zip(pools, seen, strict=True))
    )


async def test_the_ledger_agrees_with_receipts_and_with_the_engines(stack: Stack, keys: Keys) -> None:
    """Two tenants, two routers, two replicas; whole requests, several choices, and some that leave half way."""

    async def ask(number: int, key: str) -> Any:
        body = request(f"Question {number % 5}", n=1 + number % 3, max_tokens=20 + number, ignore_eos=True)
        return await stack.inference(number % 2).Generate(body, metadata=bearer(key), timeout=60)

    async def stream(number: int, key: str) -> Any:
        body = stream_request(f"Question {number}", max_tokens=30, ignore_eos=True)
        return (await collect(stack.inference(number % 2).StreamGenerate(body, metadata=bearer(key))))[-1].finished

    before = [engine.stats() for engine in stack.engines]
    owners = [(number, keys.acme if number % 3 else keys.other) for number in range(24)]
    answers = await asyncio.gather(*(ask(*owner) for owner in owners), *(stream(*owner) for owner in owners))
    await settled(stack)
    whole = await usage(stack, keys.operator, all_tenants=True)

    # Every number of a receipt is in the ledger once.
    for tenant, key in (("acme", keys.acme), ("other", keys.other)):
        theirs = [answer for answer, owner in zip(answers, owners + owners, strict=True) if owner[1] == key]
        [line] = [line for line in whole if line.tenant == tenant]
        assert line.requests == len(theirs)
        assert line.prompt_tokens == sum(answer.usage.prompt_tokens for answer in theirs)
        assert line.output_tokens == sum(answer.usage.output_tokens for answer in theirs)
        assert line.cached_tokens == sum(answer.usage.cached_tokens for answer in theirs)
        assert line.gpu_seconds == pytest.approx(sum(answer.receipt.gpu_seconds for answer in theirs))
        assert line.cost == pytest.approx(sum(answer.receipt.cost for answer in theirs))
        tokens = OUTPUT_PRICE * line.output_tokens / 1e6
        assert line.cost == pytest.approx(tokens + line.gpu_seconds * GPU_PRICE / 3600)

    await asyncio.gather(*(cut_short(stack, keys.acme, number % 2) for number in range(6)))
    await settled(stack)
    lines = await usage(stack, keys.operator, router=1, all_tenants=True)
    after = [engine.stats() for engine in stack.engines]
    made = sum(new.output_tokens - old.output_tokens for new, old in zip(after, before, strict=True))
    assert sum(line.output_tokens for line in lines) == made
    # Two accelerators per engine; what sequences used of them is all that they were busy.
    busy_s = 2 * sum(new.busy_s - old.busy_s for new, old in zip(after, before, strict=True))
    assert sum(line.gpu_seconds for line in lines) == pytest.approx(busy_s, rel=0.02)
    assert sum(line.output_tokens for line in lines) > sum(line.output_tokens for line in whole)


async def test_the_price_of_several_choices_can_be_made_from_their_tokens(tmp_path: Path) -> None:
    """Further choices find the prompt in the cache, and it is not in the request's prompt tokens again."""
    prices = {
        "price_per_million_prompt_tokens": 4e6,
        "price_per_million_cached_tokens": 1e6,
        "price_per_million_output_tokens": 2e6,
    }
    async with running_stack(tmp_path, pools={"demo": {**sim_pool(max_num_seqs=1), **prices}}) as one:
        for number in (1, 2):
            answer = await one.inference().Generate(request("word " * 100, n=3, max_tokens=4, ignore_eos=True))
            used = answer.usage
            # The second request finds what the first one left.
            assert used.cached_tokens <= used.prompt_tokens
            assert bool(used.cached_tokens) == (number == 2)
            fresh = used.prompt_tokens - used.cached_tokens
            assert answer.receipt.cost == pytest.approx(4 * fresh + used.cached_tokens + 2 * used.output_tokens)
            # What each choice found is in its attempt.
            assert all(attempt.cached_tokens for attempt in answer.receipt.attempts if attempt.choice_index)

        async def entered() -> bool:
            lines = (await one.admin().GetUsage(admin_pb2.GetUsageRequest())).lines
            return sum(line.requests for line in lines) == 2

        await until(entered)
        [line] = (await one.admin().GetUsage(admin_pb2.GetUsageRequest())).lines
        assert line.cached_tokens == used.cached_tokens
        fresh = line.prompt_tokens - line.cached_tokens
        assert line.cost == pytest.approx(4 * fresh + line.cached_tokens + 2 * line.output_tokens)


async def test_a_tenant_sees_its_own_lines_only(stack: Stack, keys: Keys) -> None:
    everything = await usage(stack, keys.operator, all_tenants=True)
    assert {"acme", "other"} == {line.tenant for line in everything}
    assert {"acme"} == {line.tenant for line in await usage(stack, keys.acme)}
    assert {"acme"} == {line.tenant for line in await usage(stack, keys.acme, tenant="acme", router=1)}
    assert not await usage(stack, keys.operator)
    assert {"other"} == {line.tenant for line in await usage(stack, keys.operator, tenant="other")}

    for asked in ({"tenant": "other"}, {"all_tenants": True}):
        call = stack.admin().GetUsage(admin_pb2.GetUsageRequest(**asked), metadata=bearer(keys.acme))
        code, facts = await refusal(call)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert facts["method"] == "AdminService/GetUsage"


async def test_days_and_pools_narrow_it(stack: Stack, keys: Keys) -> None:
    [line] = await usage(stack, keys.acme)
    assert [line] == list(await usage(stack, keys.acme, first_day=line.day, last_day=line.day, pool="demo"))
    assert not await usage(stack, keys.acme, last_day="2020-01-01")
    assert not await usage(stack, keys.acme, first_day="2999-01-01")


@pytest.mark.parametrize(
    ("asked", "field", "text"),
    [
        ({"first_day": "yesterday"}, "first_day", "'yesterday' is no day such as 2026-01-31"),
        ({"last_day": "2026-02-30"}, "last_day", "'2026-02-30' is no day"),
        (
            {"first_day": "2026-01-02", "last_day": "2026-01-01"},
            "last_day",
            "2026-01-01 must not be before first_day, 2026",
        ),
        (
            {"last_day": "1969-12-31"},
            "last_day",
            "1969-12-31 must not be before 1970-01-01, the first day there is",
        ),
        ({"pool": "nothing"}, "pool", "'nothing' is none of demo"),
    ],
)
async def test_bad_questions_are_named(stack: Stack, keys: Keys, asked: dict[str, str], field: str, text: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.admin().GetUsage(admin_pb2.GetUsageRequest(**asked), metadata=bearer(keys.acme))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"{field}: {text}" in caught.value.details()
