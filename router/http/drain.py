"""Connections of a router that drains."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from cluster.errors import ShuttingDownError

_AGAIN_S = 0.1
"""Seconds after which another router may answer."""


class Drain:
    """Closes connections so that clients turn to another router. Open answers come to their ends first."""

    def __init__(self) -> None:
        self._begun = False
        self._busy: set[object] = set()
        """Connections with a request."""

    def begin(self, server: web.Server | None) -> None:
        """Close connections without a request, and each other one after its answer."""
        self._begun = True
        for connection in server.connections if server is not None else ():
            # A busy one would lose the rest of its request's body.
            if connection not in self._busy:
                connection.force_close()

    def check(self) -> None:
        """Do nothing while new calls are welcome.

        Raises:
            ShuttingDownError: they are not.
        """
        if self._begun:
            raise ShuttingDownError("this router is shutting down", _AGAIN_S)

    @web.middleware
    async def watch(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Note that a connection is busy. Let it close after an answer that ends while the router drains."""
        self._busy.add(request.protocol)
        try:
            response = await handler(request)
        finally:
            self._busy.discard(request.protocol)
        if self._begun:
            response.force_close()
        return response
