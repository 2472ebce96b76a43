"""Steady load on a stack in process: clients that stream one request after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc

from tests.support.stack import Stack, collect, stream_request


@dataclass
class Traffic:
    """What clients got."""

    ended: int = 0
    failures: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def traffic(
    stack: Stack, clients: int, *, tokens: int = 24, pause_s: float = 0.0, model: str = "demo"
) -> AsyncIterator[Traffic]:
    """Let clients stream until the block ends; then each ends its last stream."""
    found, over = Traffic(), asyncio.Event()

    async def stream(number: int) -> None:
        turn = 0
        while not over.is_set():
            turn += 1
            text = f"client {number}, turn {turn}"
            wanted = stream_request(text, model=model, max_tokens=tokens, ignore_eos=True)
            try:
                events = await collect(stack.inference(number % len(stack.channels)).StreamGenerate(wanted))
                got = sum(len(event.delta.token_ids) for event in events if event.HasField("delta"))
                if got != tokens:
                    found.failures.append(f"{got} tokens instead of {tokens}")
            except (grpc.aio.AioRpcError, AssertionError) as error:
                found.failures.append(str(error))
            found.ended += 1
            await asyncio.sleep(pause_s)

    tasks = [asyncio.create_task(stream(number)) for number in range(clients)]
    try:
        yield found
    finally:
        over.set()
        await asyncio.gather(*tasks)
