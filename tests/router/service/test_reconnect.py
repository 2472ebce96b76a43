"""The Python client over the death of a router."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from router.client import AsyncClient, Delta, Finished, GenerateOptions, Sampling
from tests.router.dispatch.test_links import kill
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

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
    async with running_stack(
        tmp_path, redis_url=store_url, routers=2, sim={"base_ms": 3.0, "max_num_seqs": 8}
    ) as stack:
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
