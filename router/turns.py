"""Turns of the event loop that callers take, so that many of them at once leave time to others."""

from __future__ import annotations

import asyncio
from collections import deque


class LoopTurns:
    """A line of callers. Each turn of the loop lets a few of them go on, in their order, and does all other work
    between. A line without callers costs nothing.
    """

    def __init__(self, per_turn: int) -> None:
        """`per_turn`: callers that a turn lets go on."""
        self._per_turn = per_turn
        self._line: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """Return how many callers wait."""
        return len(self._line)

    async def wait(self) -> None:
        """Wait for a turn. A caller that is cancelled leaves the line."""
        loop = asyncio.get_running_loop()
        mine = loop.create_future()
        if not self._line:
            loop.call_soon(self._pass, loop)
        self._line.append(mine)
        await mine

    def _pass(self, loop: asyncio.AbstractEventLoop) -> None:
        left = self._per_turn
        while self._line and left:
            mine = self._line.popleft()
            if not mine.done():
                mine.set_result(None)
                left -= 1
        if self._line:
            loop.call_soon(self._pass, loop)
