"""The Python client over the death of a router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client import (
    AsyncClient,
    Delta,
    Event,
    Finished,
    GenerateOptions,
    RetryPolicy,
    Sampling,
    UnavailableError,
)
from tests.router.dispatch.streams import move_on, stand
from tests.router.links.parts import kill
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

pytestmark = pytest.mark.every_store("connections of a running router")

LONG = Sampling(temperature=0.0, max_tokens=300, ignore_eos=True)


def targets(stack: Stack) -> list[str]:
    return [f"127.0.0.1:{router.port}" for router in stack.routers]


async def read(client: AsyncClient, number: int, sampling: Sampling = LONG, **options: Any) -> tuple[list[int], Any]:
    """Read a stream to its end; returns its tokens and its last event."""
    tokens: list[int] = []
    last = None
    async for event in client.stream("demo", f"Prompt {number}", sampling, GenerateOptions(**options)):
        if isinstance(event, Delta):
            # The client checks this as well.
            assert event.offset == len(tokens)
            tokens.extend(event.token_ids)
        last = event
    return tokens, last


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_no_stream_notices_the_death_of_a_router(tmp_path: Path, store_url: str, temperature: float) -> None:
    """Running and waiting ones, with and without a key, also unary ones; sampled output goes on as well, because it is
    the same attempt.
    """
    sim, queue = {"base_ms": 3.0, "max_num_seqs": 8}, {"attach_grace_s": 60.0}
    async with running_stack(tmp_path, redis_url=store_url, routers=2, sim=sim, queue=queue) as stack:
        sampling = Sampling(temperature=temperature, seed=7, max_tokens=300, ignore_eos=True)
        async with AsyncClient(targets(stack)) as client:
            plain = [(await read(client, number, sampling))[0] for number in range(3)]
            streams = [asyncio.ensure_future(read(client, number % 3, sampling)) for number in range(9)]
            keyed = [
                asyncio.ensure_future(read(client, number, sampling, idempotency_key=f"k{number}"))
                for number in range(3)
            ]
            unary = [asyncio.ensure_future(client.generate("demo", f"Prompt {n}", sampling)) for n in range(3)]
            held = stack.replicas[0].table
            await until(lambda: held.sequences == 8 and stack.routers[0]._inference.open_calls >= 4)
            await asyncio.sleep(0.2)  # so that some are in the middle; nothing is asserted about it
            await kill(stack.routers[0])

            for number, (tokens, last) in enumerate(await asyncio.gather(*streams)):
                assert tokens == plain[number % 3]
                assert isinstance(last, Finished)
                assert last.receipt.exact
            assert [tokens for tokens, _ in await asyncio.gather(*keyed)] == plain
            assert [list(one.choices[0].token_ids) for one in await asyncio.gather(*unary)] == plain
        stack.routers.pop(0)
        await until(lambda: held.sequences == 0)


async def test_a_router_that_ends_before_its_streams_leaves_them_to_others(tmp_path: Path, store_url: str) -> None:
    """Drained for a moment only: what runs is not run again, what waits keeps its place."""
    # A busy machine takes long to stop a router, and nobody reads meanwhile.
    sim, queue = {"base_ms": 5.0, "max_num_seqs": 6}, {"attach_grace_s": 60.0}
    async with running_stack(tmp_path, redis_url=store_url, routers=2, sim=sim, queue=queue) as stack:
        first = stack.routers.pop(0)
        ports = [f"127.0.0.1:{first.port}", *targets(stack)]
        async with AsyncClient(ports[1:]) as other:
            plain = [(await read(other, number))[0] for number in range(2)]
        async with AsyncClient(ports[:1], retry=RetryPolicy(resume_for=0.0)) as alone, AsyncClient(ports) as client:
            lonely = alone.stream("demo", "Prompt 0", LONG)
            events = aiter(lonely)
            before = [event async for event in first_of(events)]
            # It is in its middle when its router stops.
            stand(stack)
            streams = [asyncio.ensure_future(read(client, number % 2)) for number in range(8)]
            keyed = [asyncio.ensure_future(read(client, n, idempotency_key=f"key-{n}")) for n in range(2)]
            unary = [asyncio.ensure_future(client.generate("demo", f"Prompt {n}", LONG)) for n in range(2)]
            held = stack.replicas[0].table
            await until(lambda: held.sequences == 6 and first._inference.open_calls >= 5)
            move_on(stack)

            await first.stop(drain_s=0.1)

            with pytest.raises(UnavailableError) as told:
                [event async for event in events]
            assert told.value.reason == "SHUTTING_DOWN"
            assert before
            resumed = client.stream("demo", "Prompt 0", LONG, resume=lonely.resume_point)
            rest = [token async for event in resumed if isinstance(event, Delta) for token in event.token_ids]
            assert rest == plain[0][len(plain[0]) - len(rest) :]
            for number, (tokens, last) in enumerate(await asyncio.gather(*streams)):
                assert tokens == plain[number % 2]
                assert len(last.receipt.attempts) == 1
            for number, (tokens, last) in enumerate(await asyncio.gather(*keyed)):
                assert tokens == plain[number]
                assert len(last.receipt.attempts) == 1
            assert [list(one.choices[0].token_ids) for one in await asyncio.gather(*unary)] == plain
        await until(lambda: held.sequences == 0)


async def first_of(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """Read a stream until its first output."""
    async for event in events:
        yield event
        if isinstance(event, Delta):
            return
