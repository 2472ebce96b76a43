"""A client of another pool, which should notice nothing: short streams in a process of their own, at a fixed rate."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

from cluster.lifecycle import TaskOwner
from loadtest.benchmarks.child import Child, answer
from penstock.client import AsyncClient, Delta, PenstockClientError, Sampling

PERIOD_S = 0.05
TOKENS = 8
POOL = "quick"


class Neighbour:
    """Sender of a stream every PERIOD_S. It does not wait for the last one."""

    def __init__(self, target: str) -> None:
        self._client = AsyncClient(target)
        self._streams = TaskOwner("streams")
        self._ttft_s: list[float] = []
        self._total_s: list[float] = []
        self._failed = 0

    async def run(self) -> None:
        """Send until cancelled."""
        due = time.monotonic()
        try:
            while True:
                self._streams.spawn(self._stream(due), "stream")
                due += PERIOD_S
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        finally:
            await self._streams.close()
            await self._client.close()

    async def _stream(self, due: float) -> None:
        first = None
        try:
            async for event in self._client.stream(POOL, "Is it quiet?", Sampling(max_tokens=TOKENS, ignore_eos=True)):
                if first is None and isinstance(event, Delta):
                    first = time.monotonic()
        except PenstockClientError:
            self._failed += 1
            return
        # Counted from the due time, so that delays of this process count as well.
        self._ttft_s.append((first or time.monotonic()) - due)
        self._total_s.append(time.monotonic() - due)

    def take(self) -> dict[str, Any]:
        """Return the measurements since the last call."""
        taken = {"ttft_s": self._ttft_s, "total_s": self._total_s, "failed": self._failed}
        self._ttft_s, self._total_s, self._failed = [], [], 0
        return taken


async def start_neighbour(target: str) -> Child:
    return await Child.start("loadtest.benchmarks.reconnect.neighbour", "--target", target)


async def _serve(target: str) -> None:
    neighbour = Neighbour(target)
    owner = TaskOwner("neighbour")
    owner.spawn(neighbour.run(), "run")
    await answer(lambda _: neighbour.take())
    await owner.close()


def main() -> None:
    """Send until standard input ends."""
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    uvloop.run(_serve(parser.parse_args().target))


if __name__ == "__main__":
    main()
