"""An open-loop load through a router, with what each client saw."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.traces import TraceRequest
from penstock.client import Delta, Sampling
from penstock.client.aio import AsyncClient


@dataclass(slots=True)
class Served:
    """Observations of one request's client, in seconds."""

    due: float
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    late: float = 0.0
    """Delay of the sending after the due time."""


async def drive(
    client: AsyncClient, model: str, requests: Sequence[TraceRequest], seed: int = 1
) -> tuple[list[Served], int]:
    """Send requests when they are due. Return the served ones, and the number of failed ones."""
    rnd = random.Random(seed)
    begin = time.perf_counter() + 0.1
    served = [Served(begin + request.arrival_s) for request in requests]
    prompts = [[rnd.randint(3, 250) for _ in range(request.prompt_tokens)] for request in requests]

    async def one(number: int) -> None:
        seen, request = served[number], requests[number]
        await asyncio.sleep(max(0.0, seen.due - time.perf_counter()))
        seen.late = time.perf_counter() - seen.due
        sampling = Sampling(max_tokens=request.output_tokens, temperature=0.0, ignore_eos=True)
        async for event in client.stream(model, prompts[number], sampling, flush_interval=0.0, timeout=300.0):
            if isinstance(event, Delta) and event.token_ids:
                now = time.perf_counter()
                seen.first = seen.first or now
                seen.last, seen.tokens = now, seen.tokens + len(event.token_ids)

    ends = await asyncio.gather(*(one(number) for number in range(len(requests))), return_exceptions=True)
    return served, sum(isinstance(each, BaseException) for each in ends)
