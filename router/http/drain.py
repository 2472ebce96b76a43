"""Connections of a router that drains."""

from __future__ import annotations

from collections.abc import Container

from aiohttp import web

from cluster.errors import ShuttingDownError

_AGAIN_S = 0.1
"""Seconds after which another router may answer."""


class Drain:
    """Closes connections so that clients turn to another router. Open answers come to their ends first."""

    def __init__(self) -> None:
        self._begun = False

    def begin(self, server: web.Server | None, busy: Container[object]) -> None:
        """Close connections without a request, and each of the `busy` ones after its answer."""
        self._begun = True
        for connection in server.connections if server is not None else ():
            # A busy one would lose the rest of its request's body.
            if connection not in busy:
                connection.force_close()

    def check(self) -> None:
        """Do nothing while new calls are welcome.

        Raises:
            ShuttingDownError: they are not.
        """
        if self._begun:
            raise ShuttingDownError("this router is shutting down", _AGAIN_S)

    def answered(self, response: web.StreamResponse) -> None:
        """Let a connection close after an answer that ends while the router drains."""
        if self._begun:
            response.force_close()
