"""The load: the same prompts, lengths and arrivals for every path."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types

STREAMS = 128
TOKENS = 128


@dataclass(slots=True)
class StreamTimes:
    """Observations of one client."""

    sent_at: float
    first_at: float = 0.0
    last_at: float = 0.0
    tokens: int = 0
    messages: int = 0

    def got(self, tokens: int) -> None:
        """Note a message with this many tokens."""
        now = time.perf_counter()
        if not self.messages:
            self.first_at = now
        self.last_at = now
        self.messages += 1
        self.tokens += tokens


Send = Callable[[str, int, StreamTimes], Awaitable[None]]
"""Function that sends one prompt, asks for a number of tokens, and notes every message."""


@dataclass(slots=True)
class LoadResult:
    """Observations of all clients of a phase together."""

    seconds: float = 0.0
    streams: list[StreamTimes] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Number of output tokens."""
        return sum(stream.tokens for stream in self.streams)

    @property
    def messages(self) -> int:
        """Number of client messages that carried output."""
        return sum(stream.messages for stream in self.streams)

    def ttft_ms(self) -> list[float]:
        """Return the time to first token of each stream."""
        return [1e3 * (s.first_at - s.sent_at) for s in self.streams if s.messages]

    def itl_ms(self) -> list[float]:
        """Return the mean inter-token latency of each stream."""
        return [1e3 * (s.last_at - s.first_at) / (s.tokens - 1) for s in self.streams if s.tokens > 1]


def grpc_send(stub: Any, model: str, **sampling: Any) -> Send:
    """Return a sender of streams to a router, with a stub of its InferenceService."""

    async def send(text: str, tokens: int, stream: StreamTimes) -> None:
        params = types.SamplingParams(max_tokens=tokens, ignore_eos=True, **sampling)
        generate = api.GenerateRequest(model=model, prompt=types.Prompt(text=text), sampling=params)
        async for event in stub.StreamGenerate(api.StreamGenerateRequest(generate=generate)):
            if event.HasField("delta") and (count := len(event.delta.token_ids)):
                stream.got(count)

    return send


def prompt(number: int) -> str:
    """Return a short prompt. Prompts differ only near their end, as in real traffic of one app."""
    return f"What is continuous batching, asked for the {number}th time?"


async def saturate(send: Send, rounds: int, first: int = 0) -> LoadResult:
    """Open all streams at once, wait for all, and repeat."""
    result = LoadResult()
    began = time.perf_counter()
    for number in range(rounds):
        base = first + number * STREAMS
        await asyncio.gather(*(_one(send, prompt(base + i), TOKENS, result) for i in range(STREAMS)))
    result.seconds = time.perf_counter() - began
    return result


async def pace(send: Send, requests_per_s: float, seconds: float, seed: int = 1) -> LoadResult:
    """Send Poisson arrivals on a schedule that does not wait for answers."""
    source = random.Random(seed)
    result = LoadResult()
    tasks = []
    began = time.perf_counter()
    at = 0.0
    number = 0
    while (at := at + source.expovariate(requests_per_s)) < seconds:
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        tasks.append(asyncio.create_task(_one(send, prompt(number), TOKENS, result)))
        number += 1
    await asyncio.gather(*tasks)
    result.seconds = time.perf_counter() - began
    return result


async def alone(send: Send, requests: int, tokens: int = 64) -> LoadResult:
    """Send one request after another."""
    result = LoadResult()
    began = time.perf_counter()
    for number in range(requests):
        await _one(send, prompt(number), tokens, result)
    result.seconds = time.perf_counter() - began
    return result


async def _one(send: Send, text: str, tokens: int, result: LoadResult) -> None:
    stream = StreamTimes(time.perf_counter())
    result.streams.append(stream)
    await send(text, tokens, stream)
    if stream.tokens != tokens:
        raise RuntimeError(f"a stream ended with {stream.tokens} of {tokens} tokens")
