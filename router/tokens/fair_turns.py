"""Fair access of tenants to a scarce resource."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairTurns:
    """Limited places that tenants take in turn. A free place goes to the next tenant that waits, and there to its
    oldest caller. A tenant with a thousand callers waits for itself; it delays each other caller by one turn.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting callers by tenant; the next tenant comes first, and no line is empty."""

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a place, and keep it while the block runs."""
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
                # The place was given in the same turn of the event loop.
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._lines:
            tenant = next(iter(self._lines))
            line = self._lines.pop(tenant)
            following = line.popleft()
            if line:
                # The tenant goes behind the others.
                self._lines[tenant] = line
            if not following.done():
                following.set_result(None)
                return
        self._free += 1
