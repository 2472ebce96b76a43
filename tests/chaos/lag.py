"""Standstills of the loop of a run's clients and proxies, which look like silence of the cluster."""

from __future__ import annotations

import asyncio
import time

STEP_S = 0.02
"""Time between two looks, seconds."""
LEAST_S = 0.05
"""Shortest standstill that is noted, seconds."""


class LoopLag:
    """Standstills of one loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.standstills: list[tuple[float, float]] = []
        """Monotonic seconds of begin and end."""

    async def watch(self, over: asyncio.Event) -> None:
        """Measure until the run is over."""
        while not over.is_set():
            due = time.monotonic() + STEP_S
            await asyncio.sleep(STEP_S)
            woken = time.monotonic()
            self.longest_s = max(self.longest_s, woken - due)
            if woken - due >= LEAST_S:
                self.standstills.append((due, woken))
