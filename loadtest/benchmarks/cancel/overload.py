"""The speed at which a full queue refuses, over the real port."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from cluster.lifecycle import TaskOwner
from loadtest.benchmarks.cancel.host import hosted
from loadtest.benchmarks.cancel.latency import spread
from loadtest.benchmarks.cancel.requests import generation, streamed, stub
from penstock.v1 import types_pb2 as types
from penstock.values.errors import QueueFullError, from_rpc_error

BOUND = 200
"""Number of waiting requests when the queue is full."""
CALLERS = 500
OPEN_RATE = 200.0
"""Calls per second that do not wait for each other."""
SLOTS = 4
_SIM = {"base_ms": 1_000.0, "max_num_seqs": SLOTS}
BOUNDS = {"per tenant": {"max_waiting_per_tenant": BOUND}, "in total": {"max_waiting": BOUND}}
_PROMPT = types.Prompt(text="One too many?")


async def run(folder: Path, redis_url: str, calls: int, progress: Callable[[int], None]) -> dict[str, Any]:
    """Measure this many refusals per row. Return the figures."""
    figures = {}
    for name, queue in BOUNDS.items():
        async with hosted(folder, redis_url, {"sim": _SIM, "queue": queue}) as host:
            channels = [grpc.aio.insecure_channel(target) for target in host.targets]
            crowd = TaskOwner("crowd")
            try:
                inferences = [stub(channel) for channel in channels]
                await _fill(inferences, crowd)
                figures[name] = await _measure(inferences, calls, progress)
            finally:
                await crowd.close()
                for channel in channels:
                    await channel.close(None)
    return figures


async def _fill(inferences: Sequence[Any], crowd: TaskOwner) -> None:
    """Fill all slots and places with requests."""

    async def hold(call: Any) -> None:
        while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]  # missing in the stubs
            pass

    for number in range(2 * SLOTS + BOUND):
        call = inferences[number % 2].StreamGenerate(streamed(_PROMPT))
        await call.read()
        crowd.spawn(hold(call), "hold")


async def _measure(inferences: Sequence[Any], calls: int, progress: Callable[[int], None]) -> dict[str, Any]:
    took: list[float] = []

    async def refused(number: int) -> None:
        began = time.monotonic()
        try:
            await inferences[number % 2].Generate(generation(_PROMPT))
        except grpc.aio.AioRpcError as error:
            took.append(time.monotonic() - began)
            check_refusal(error)
            progress(1)
        else:
            raise RuntimeError("a full queue took one more request")

    def row() -> dict[str, float]:
        figures = spread(took)
        took.clear()
        return figures

    for number in range(20):
        await refused(number)
    took.clear()
    for number in range(calls):
        await refused(number)
    alone = row()
    began = time.monotonic()
    tasks = []
    for number in range(calls):
        await asyncio.sleep(max(0.0, began + number / OPEN_RATE - time.monotonic()))
        tasks.append(asyncio.create_task(refused(number)))
    await asyncio.gather(*tasks)
    spaced = row()
    callers = min(CALLERS, calls)
    count = 4 * callers
    left = iter(range(count))

    async def caller() -> None:
        for number in left:
            await refused(number)

    began = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(callers)))
    per_s = count / (time.monotonic() - began)
    return {
        "one at a time": alone,
        f"{OPEN_RATE:.0f} per second": spaced,
        f"{callers} callers at once": row() | {"per_s": round(per_s)},
    }


def check_refusal(error: grpc.aio.AioRpcError) -> None:
    """Raise RuntimeError for any error but a QueueFullError with a retry time."""
    refusal = from_rpc_error(error)
    if not isinstance(refusal, QueueFullError) or not refusal.retry_after:
        raise RuntimeError(f"refused otherwise: {refusal}") from error
