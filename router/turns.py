"""Turns of the event loop that callers take, so that many of them at once leave time to others."""

from __future__ import annotations

import asyncio
from collections import deque

_HELD = 7
"""Turns in a row that a line which grows lets nobody go on."""


class LoopTurns:
    """A line of callers. Each turn of the loop lets a few of them go on, in their order, and does all other work
    between. A line without callers costs nothing.

    While more callers come than go, nearly all turns are theirs alone: they come in one line with others that must not
    wait for this one, and these are found the earlier.
    """

    def __init__(self, per_turn: int) -> None:
        """`per_turn`: callers that a turn lets go on."""
        self._per_turn = per_turn
        self._line: deque[asyncio.Future[None]] = deque()
        self._seen = 0
        """Length of the line after the last turn."""
        self._held = 0

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
        grows = len(self._line) > self._seen
        self._held = self._held + 1 if grows and self._held < _HELD else 0
        left = 0 if self._held else self._per_turn
        while self._line and left:
            mine = self._line.popleft()
            if not mine.done():
                mine.set_result(None)
                left -= 1
        self._seen = len(self._line)
        if self._line:
            loop.call_soon(self._pass, loop)
