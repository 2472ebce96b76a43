"""A process with a part of the crowd of streams. Each stream counts its tokens."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psutil

from cluster.lifecycle import TaskOwner
from cluster.open_files import raise_open_files
from loadtest.benchmarks.child import Child, answer
from penstock.client import AsyncClient, Finished, PenstockClientError, RetryPolicy, Sampling

POOL = "herd"
PER_CLIENT = 100
"""Streams of one client, which has one connection to each router."""
OPENING = 100
"""Streams that a process opens at the same time at the start. Only the reconnect shall be a herd."""


class Herd:
    """Streams of one process."""

    def __init__(self, targets: Sequence[str], streams: int, tokens: int) -> None:
        # A broken stream may have to wait until thousands of others are through.
        retry = RetryPolicy(resume_for=60.0)
        self._clients = [AsyncClient(targets, retry=retry) for _ in range(-(-streams // PER_CLIENT))]
        self._streams = streams
        self._tokens = tokens
        self._gate = asyncio.Semaphore(OPENING)
        self._owner = TaskOwner("herd")
        self._begun = 0
        self._ends: Counter[str] = Counter()

    def open(self) -> None:
        """Begin to open all streams."""
        for number in range(self._streams):
            self._owner.spawn(self._stream(self._clients[number // PER_CLIENT], number), "stream")

    async def _stream(self, client: AsyncClient, number: int) -> None:
        sampling = Sampling(max_tokens=self._tokens, ignore_eos=True)
        last: object = None
        opening = True
        await self._gate.acquire()
        try:
            # The client itself raises an error if a token is missing or comes twice.
            async for event in client.stream(POOL, f"Stream {number}", sampling):
                last = event
                if opening:
                    opening = False
                    self._opened()
        except PenstockClientError as error:
            self._ends[type(error).__name__] += 1
        else:
            self._ends[self._end_of(last)] += 1
        finally:
            if opening:
                self._opened()

    def _opened(self) -> None:
        self._begun += 1
        self._gate.release()

    def _end_of(self, last: object) -> str:
        if not isinstance(last, Finished):
            return "unfinished"
        whole = last.usage.output_tokens == self._tokens
        return "whole" if whole else f"{last.choices[0].finish_reason}, {last.usage.output_tokens} tokens"

    def figures(self) -> dict[str, Any]:
        """Return how many streams have begun, how streams have ended, and the CPU seconds of the process."""
        spent = psutil.Process().cpu_times()
        return {"begun": self._begun, "ends": self._ends, "cpu_s": spent.user + spent.system}

    async def close(self) -> None:
        """End all streams."""
        await self._owner.close()
        for client in self._clients:
            await client.close()


async def start_herd(targets: Sequence[str], streams: int, tokens: int, nice: int) -> Child:
    """Start a process with a part of the crowd. It begins to open its streams at once."""
    words = ("--targets", *targets, "--streams", str(streams), "--tokens", str(tokens), "--nice", str(nice))
    return await Child.start("loadtest.benchmarks.reconnect.herd", *words)


async def _serve(options: argparse.Namespace) -> None:
    herd = Herd(options.targets, options.streams, options.tokens)
    herd.open()
    await answer(lambda _: herd.figures())
    # At once: thousands of streams take long to end in order, and the figures are out.
    os._exit(0)


def main() -> None:
    """Stream until standard input ends."""
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", nargs="+", required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--nice", type=int, default=0)
    options = parser.parse_args()
    os.nice(options.nice)
    raise_open_files()
    uvloop.run(_serve(options))


if __name__ == "__main__":
    main()
