"""Connections without a request, which must not take the place of those with one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

_LOG = logging.getLogger(__name__)

_LOOK_S = 1.0
"""Seconds between two looks at the connections. A server that can't take more tries again after as long."""
_LEAST_S = 5.0
"""Shortest idle time after which a connection is closed for others. Its request may be on its way."""
_NEAR = 0.9
"""Part of the bound from which on every connection is looked at. Below it a look would hold up streams for nothing."""
_DEAD = 1.25, 100
"""Moments that are kept of connections, times those that are open and some more: a clean-up looks at all of them."""
_PART = 2
"""HTTP connections may take this part of a process' open files; the rest is for gRPC, replicas and Redis."""


def most_connections() -> int | None:
    """Return how many HTTP connections this process may have; None for no bound."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else max(1, soft // _PART)


class IdleConnections:
    """Bound on the connections of a server: those without a request are closed for others.

    Those that are idle longest go first. One with a request is never closed.
    """

    def __init__(self, most: int | None) -> None:
        """`most`: connections that may be open; None for no bound."""
        self._most = most
        self.busy: set[Any] = set()
        """Connections with a request."""
        self._since: dict[Any, float] = {}
        """Moment since which a connection is idle: since its last request ended, or since it was first looked at.
        Monotonic seconds. Some of them are closed by now."""

    def began(self, connection: Any) -> None:
        """Note that a connection has a request."""
        self.busy.add(connection)

    def ended(self, connection: Any) -> None:
        """Note that it has none any more."""
        self.busy.discard(connection)
        self._since[connection] = time.monotonic()

    def surplus(self, connections: Sequence[Any], now: float) -> list[Any]:
        """Return the connections to close, of those that are open, oldest first. `connections`: the oldest first."""
        if self._most is None or len(connections) <= _NEAR * self._most:
            times, more = _DEAD
            if len(self._since) > times * len(connections) + more:
                self._since = {each: self._since[each] for each in connections if each in self._since}
            return []
        self._since = {each: self._since.get(each, now) for each in connections}
        if len(connections) <= self._most:
            return []
        idle = [each for each in connections if each not in self.busy and now - self._since[each] >= _LEAST_S]
        idle.sort(key=self._since.__getitem__)
        return idle[: len(connections) - self._most]

    async def keep(self, server: Callable[[], web.Server | None]) -> None:
        """Close what is too much, until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            found = server()
            surplus = self.surplus(found.connections, time.monotonic()) if found is not None else []
            for connection in surplus:
                with contextlib.suppress(Exception):
                    connection.force_close()
            if surplus:
                _LOG.warning("http.idle_closed", extra={"closed": len(surplus), "most": self._most})
