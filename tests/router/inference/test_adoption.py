"""Requests change hands before the router that asked for them has heard of it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.v1 import inference_pb2 as api
from router.dispatch.pool import Pool
from tests.router.dispatch.streams import move_on, stand
from tests.support.stack import Stack, collect, ids_of, running_stack, stream_request
from tests.support.waiting import until

TOKENS = 300


@pytest.fixture
async def stack(tmp_path: Path, store_url: str) -> AsyncIterator[Stack]:
    sim = {"base_ms": 5.0, "max_num_seqs": 1}
    async with running_stack(tmp_path, redis_url=store_url, routers=2, sim=sim) as running:
        yield running


@contextlib.asynccontextmanager
async def adopting(pool: Pool) -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
    """Have a pool's adoptions wait, done in the queue and unheard: tells that one is, and when to go on."""
    queue, adopted, go_on = pool._context.queue, asyncio.Event(), asyncio.Event()
    adopt = queue.adopt

    async def slow(*arguments: str) -> object:
        reply = await adopt(*arguments)
        adopted.set()
        await go_on.wait()
        return reply

    queue.adopt = slow  # type: ignore[method-assign, assignment]
    try:
        yield adopted, go_on
    finally:
        queue.adopt = adopt  # type: ignore[method-assign]


def keyed() -> api.StreamGenerateRequest:
    wanted = stream_request(max_tokens=TOKENS, ignore_eos=True)
    wanted.generate.idempotency_key = "key"
    return wanted


async def seen(call: Any, kind: str) -> api.StreamGenerateResponse:
    """Read a stream to the next event of a kind."""
    while not (event := await call.read()).HasField(kind):
        pass
    return event


async def heartbeats(pool: Pool, count: int) -> None:
    """Wait for so many answers that came after this moment."""
    for _ in range(count):
        last = pool.beat
        await until(lambda last=last: pool.beat is not last)


@pytest.mark.parametrize("with_token", [False, True])
async def test_a_request_with_a_key_outlives_a_call_that_was_taking_it_over(stack: Stack, with_token: bool) -> None:
    first = stack.inference(0).StreamGenerate(keyed())
    begun = (await seen(first, "started")).started
    await seen(first, "delta")
    stand(stack)
    async with adopting(stack.routers[1].pools["demo"]) as (adopted, go_on):
        again = keyed()
        if with_token:
            again.resume.CopyFrom(api.Resume(resume_token=begun.resume_token, received_tokens=[0]))
        second = stack.inference(1).StreamGenerate(again)
        await adopted.wait()
        second.cancel()
        await until(second.done)
        # Nothing shows that the router has heard of it.
        await asyncio.sleep(0.05)
        go_on.set()
        with pytest.raises(grpc.aio.AioRpcError, match="ABORTED"):
            await collect(first)

    third = stack.inference(0).StreamGenerate(again)
    events = [await third.read()]
    move_on(stack)
    events += await collect(third)

    # What goes on is the attempt that the first call began.
    assert [begun.request_id] == [event.started.request_id for event in events if event.HasField("started")]
    assert TOKENS == len(ids_of(events))
    assert 1 == len(events[-1].finished.receipt.attempts)


async def test_the_receipt_of_who_takes_over_begins_with_the_first_call(stack: Stack) -> None:
    first = stack.inference(0).StreamGenerate(keyed())
    await seen(first, "started")
    tokens = 0
    while tokens < 0.8 * TOKENS:
        tokens += len((await seen(first, "delta")).delta.token_ids)

    events = await collect(stack.inference(1).StreamGenerate(keyed()))

    # The second call saw a fifth of the tokens. Half is left for a first token that came late.
    receipt = events[-1].finished.receipt
    (attempt,) = receipt.attempts
    decoded = attempt.decode_time.ToTimedelta()
    assert datetime.timedelta(seconds=0.5 * 0.005 * TOKENS) < decoded < receipt.total_time.ToTimedelta()
    first.cancel()


@pytest.mark.parametrize("running", [False, True])
async def test_mail_may_overtake_an_adoption(stack: Stack, running: bool) -> None:
    """Heartbeats have a connection of their own, and a grant is on its way there before its request is known."""
    pool = stack.routers[1].pools["demo"]
    before = stack.inference(0).StreamGenerate(stream_request(max_tokens=4000, ignore_eos=True))
    await seen(before, "delta")
    # What its router has not told of yet is in the mail of whoever adopts it.
    stack.routers[0].pools["demo"]._membership.started = lambda *_: None  # type: ignore[method-assign]
    first = stack.inference(0).StreamGenerate(keyed())
    queued = (await seen(first, "queued")).queued
    if running:
        before.cancel()
        await seen(first, "delta")
        stand(stack)
    async with adopting(pool) as (adopted, go_on):
        second = stack.inference(1).StreamGenerate(keyed())
        await adopted.wait()
        before.cancel()
        await heartbeats(pool, 3)
        go_on.set()
        begun = [await seen(second, "delta")]
        held = (await pool._context.queue.holdings(stack.routers[1].router_id, b"", 10)).page
        move_on(stack)
        events = begun + await collect(second)

    assert [queued.request_id] == [one.request_id for one in held]
    assert not any(pool.reconciler.mended.values())
    assert queued.request_id == events[-1].finished.request_id
    assert TOKENS == len(ids_of(events))
    assert 1 == len(events[-1].finished.receipt.attempts)
    with pytest.raises(grpc.aio.AioRpcError, match="ABORTED"):
        await collect(first)
