"""Streams at two routers, one of which is killed.

The benchmark measures the other one, the streams, and a neighbour.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cluster.lifecycle import TaskOwner
from loadtest.benchmarks.reconnect.neighbour import POOL, NeighbourProcess
from loadtest.benchmarks.reconnect.node import Node
from penstock.client import AsyncClient, Finished, PenstockClientError, RetryPolicy, Sampling

HERD = "herd"
SLOTS = 2048
"""Slots per replica."""
STEP_S = 8.0
PER_CLIENT = 100
"""Streams of one client, which has one connection to each router."""
OPENING = 200
"""Streams that are opened at the same time at the start. Only the reconnect shall be a herd."""
QUIET_S = 20.0
_LOOK_S = 0.05
_MOST_S = 120.0


def sections(streams: int) -> dict[str, Any]:
    """Return the settings of all processes."""
    slow = {"base_ms": STEP_S * 1e3, "per_token_us": 0, "per_kv_token_us": 0, "kv_tokens": 64 * streams + 4096}
    quick = {"base_ms": 5.0, "max_num_seqs": 64}
    return {
        # A step is far longer than an engine may usually be silent.
        "router": {"port": 0, "token_timeout_s": 600.0, "first_token_timeout_s": 600.0},
        "queue": {"max_waiting_per_tenant": 2 * streams + 100, "max_waiting": 2 * streams + 100},
        "pools": {
            HERD: {"engine": "sim", "sim": {**slow, "max_num_seqs": SLOTS, "max_num_batched_tokens": 4 * SLOTS}},
            POOL: {"engine": "sim", "sim": quick},
        },
    }


class Herd:
    """The crowd of streams. Each stream counts its tokens."""

    def __init__(self, targets: Sequence[str], streams: int, tokens: int) -> None:
        # A broken stream may have to wait until thousands of others are through.
        retry = RetryPolicy(resume_for=60.0)
        self._clients = [AsyncClient(targets, retry=retry) for _ in range(-(-streams // PER_CLIENT))]
        self._streams = streams
        self._tokens = tokens
        self._gate = asyncio.Semaphore(OPENING)
        self._owner = TaskOwner("herd")
        self._begun = 0
        self._all_begun = asyncio.Event()
        self._all_ended = asyncio.Event()
        self.ends: Counter[str] = Counter()

    async def open(self, progress: Callable[[int], None]) -> None:
        """Open all streams. Return when each has its first event."""
        for number in range(self._streams):
            self._owner.spawn(self._stream(self._clients[number // PER_CLIENT], number, progress), "stream")
        await self._all_begun.wait()

    async def _stream(self, client: AsyncClient, number: int, progress: Callable[[int], None]) -> None:
        sampling = Sampling(max_tokens=self._tokens, ignore_eos=True)
        last: object = None
        opening = True
        await self._gate.acquire()
        try:
            # The client itself raises an error if a token is missing or comes twice.
            async for event in client.stream(HERD, f"Stream {number}", sampling):
                last = event
                if opening:
                    opening = False
                    self._opened()
                    progress(1)
        except PenstockClientError as error:
            self.ends[type(error).__name__] += 1
        else:
            self.ends[self._end_of(last)] += 1
        finally:
            if opening:
                self._opened()
            if self.ends.total() == self._streams:
                self._all_ended.set()

    def _end_of(self, last: object) -> str:
        if not isinstance(last, Finished):
            return "unfinished"
        whole = last.usage.output_tokens == self._tokens
        return "whole" if whole else f"{last.choices[0].finish_reason}, {last.usage.output_tokens} tokens"

    def _opened(self) -> None:
        self._gate.release()
        self._begun += 1
        if self._begun == self._streams:
            self._all_begun.set()

    async def wait(self) -> None:
        """Wait until every stream has ended."""
        await self._all_ended.wait()

    async def close(self) -> None:
        await self._owner.close()
        for client in self._clients:
            await client.close()


async def run(folder: Path, redis_url: str, streams: int, progress: Callable[[int], None]) -> dict[str, Any]:
    """Run it once with this many streams, half of them at the router that dies. Return the figures."""
    settings = sections(streams)
    nodes: list[Node] = []

    async def started(role: str, count: int = 1) -> Node:
        nodes.append(await Node.start(folder, redis_url, settings, role, count))
        return nodes[-1]

    herd: Herd | None = None
    neighbour: NeighbourProcess | None = None
    try:
        await started(POOL)
        count = -(-streams // SLOTS)
        await started(HERD, count)
        doomed, left = await started("router"), await started("router")
        await _linked((doomed, left), count + 1)
        targets = [f"127.0.0.1:{(await node.ask('figures'))['port']}" for node in (doomed, left)]
        neighbour = await NeighbourProcess.start(targets[1])
        # Long enough for opening at 200 a second, the phases, and some more.
        herd = Herd(targets, streams, tokens=int(streams / 200 / STEP_S + 5 * QUIET_S / STEP_S))
        await herd.open(progress)
        return await _measure(herd, neighbour, doomed, left)
    finally:
        if herd is not None:
            await herd.close()
        if neighbour is not None:
            await neighbour.stop()
        for node in reversed(nodes):
            await node.stop()


async def _linked(routers: Sequence[Node], replicas: int) -> None:
    for router in routers:
        while (await router.ask("figures"))["links"] < replicas:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(_LOOK_S)


async def _measure(herd: Herd, neighbour: NeighbourProcess, doomed: Node, left: Node) -> dict[str, Any]:
    await neighbour.take()
    await asyncio.sleep(QUIET_S)
    before, at_first = await neighbour.take(), await left.ask("figures")
    broken = (await doomed.ask("figures"))["open_calls"]
    killed_at = time.monotonic()
    await doomed.kill()
    # Calls of its neighbours come and go. The herd has arrived when nearly all calls have.
    whole = at_first["open_calls"] + broken
    came: dict[str, float] = {}
    while time.monotonic() - killed_at < _MOST_S and "all" not in came:
        there = (await left.ask("figures"))["open_calls"] - at_first["open_calls"]
        for name, part in (("half", 0.5), ("99 %", 0.99), ("all", 1.0)):
            if there >= part * (broken - 2) and name not in came:
                came[name] = round(time.monotonic() - killed_at, 2)
        await asyncio.sleep(_LOOK_S)
    during = await neighbour.take()
    at_peak = await left.ask("figures")
    await asyncio.sleep(QUIET_S)
    after = await neighbour.take()
    await herd.wait()
    at_last = await left.ask("figures")
    return {
        "streams": herd.ends.total(),
        "broken": broken,
        "open_calls_after": whole,
        "ends": dict(herd.ends),
        "back_s": came,
        "rss_mb": {"before": at_first["rss_mb"], "herd": at_peak["rss_mb"], "end": at_last["rss_mb"]},
        "lag_s": at_last["lag_s"],
        "neighbour": {"before": _spread(before), "herd": _spread(during), "after": _spread(after)},
    }


def _spread(taken: Mapping[str, Any]) -> dict[str, float]:
    figures: dict[str, float] = {"streams": len(taken["ttft_s"]), "failed": taken["failed"]}
    if not taken["ttft_s"]:
        return figures
    for name in ("ttft", "total"):
        for part in (50, 99):
            figures[f"{name}_p{part}_ms"] = round(1e3 * float(np.percentile(taken[f"{name}_s"], part)), 1)
    return figures
