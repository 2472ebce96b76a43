"""Standstills of the loop of a run's clients and proxies, which look like silence of the cluster."""

from __future__ import annotations

import asyncio
import time

STEP_S = 0.02
"""Time between two looks, seconds."""


class LoopLag:
    """Longest standstill of one loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def watch(self, over: asyncio.Event) -> None:
        """Measure until the run is over."""
        while not over.is_set():
            began = time.monotonic()
            await asyncio.sleep(STEP_S)
            self.longest_s = max(self.longest_s, time.monotonic() - began - STEP_S)
