"""Ports of HTTP servers."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Sequence
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from cluster.addresses import EVERY_ADDRESS, listening_host
from router.acceptor import Acceptor


async def listen(
    runner: web.AppRunner,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    shared: bool = False,
    any_port: bool = False,
) -> None:
    """Let a runner listen on a port. `::` means every address of both families, as in gRPC.

    Args:
        runner: that is set up.
        host: name or address.
        port: 0 takes a free one.
        tls: None serves in the clear.
        shared: whether other processes listen on the port, too.
        any_port: whether a free port is taken where this one is in use.

    Raises:
        OSError: it can't be bound.
    """
    try:
        bound = await _bound(listening_host(host), port, shared=shared)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not any_port:
            raise
        bound = await _bound(listening_host(host), 0, shared=False)
    await AcceptorSite(runner, bound, tls).start()


class MalformedRequests(logging.Filter):
    """Filter that makes one line of what is no HTTP request, or has a body that can't be read: that is its sender's
    mistake. Its bytes may be a key.
    """

    def __init__(self, log: logging.Logger) -> None:
        """`log`: that of the server."""
        super().__init__()
        self._log = log

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record of such a request."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError | web.RequestPayloadError):
            return True
        # Of a body that nobody reads to its end the server does not say whose it is.
        record.client = next(iter(record.args), "") if isinstance(record.args, tuple) else ""
        record.why = type(error).__name__
        record.msg, record.args, record.exc_info = "http.malformed", (), None
        record.levelno, record.levelname = logging.INFO, "INFO"
        return self._log.isEnabledFor(logging.INFO)


class AcceptorSite(web.BaseSite):
    """Bound sockets of a runner."""

    def __init__(self, runner: web.AppRunner, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None) -> None:
        super().__init__(runner, ssl_context=tls)
        self._sockets = sockets

    @property
    def name(self) -> str:
        """Addresses, for logs."""
        return ", ".join(str(each.getsockname()) for each in self._sockets)

    async def start(self) -> None:
        """Begin to accept."""
        await super().start()
        server = self._runner.server
        if server is None:
            raise RuntimeError("the runner is not set up")
        acceptor = Acceptor(self._sockets, server, self._ssl_context)
        # What a runner uses of a server of asyncio.
        self._server = cast(asyncio.AbstractServer, acceptor)
        acceptor.start()

    async def stop(self) -> None:
        """Stop to accept."""
        await super().stop()
        if self._server is not None:
            await self._server.wait_closed()


async def _bound(host: str, port: int, *, shared: bool) -> list[socket.socket]:
    if host == EVERY_ADDRESS:
        # asyncio makes a socket of its own for one family alone.
        return [socket.create_server((host, port), family=socket.AF_INET6, reuse_port=shared, dualstack_ipv6=True)]
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    bound: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((info[0], info[4]) for info in found):
            # All addresses of a name get the port that the first one took.
            where = (address[0], port or (bound[0].getsockname()[1] if bound else 0), *address[2:])
            bound.append(socket.create_server(where, family=family, reuse_port=shared))
    except OSError:
        for each in bound:
            each.close()
        raise
    return bound
