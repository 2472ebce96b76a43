"""Lets tenants take turns at something scarce."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairTurns:
    """Gives out so many places at once. Whoever waits gets the next one tenant by tenant, each in its own order: who
    asks a thousand times makes itself wait, and others for one turn each.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        """By tenant, who is next first; none is empty."""

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a place, and have it while the block runs."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, tenant: str) -> None:
        mine = asyncio.get_running_loop().create_future()
        self._lines.setdefault(tenant, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():
                # The place came in the same turn of the loop.
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._lines:
            tenant = next(iter(self._lines))
            line = self._lines.pop(tenant)
            following = line.popleft()
            if line:
                # Behind the others.
                self._lines[tenant] = line
            if not following.done():
                following.set_result(None)
                return
        self._free += 1
