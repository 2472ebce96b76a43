"""Ports of HTTP servers."""

from __future__ import annotations

import errno
import socket
import ssl

from aiohttp import web

from cluster.addresses import EVERY_ADDRESS, listening_host

_BACKLOG = 128


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
        await _site(runner, listening_host(host), port, tls, shared=shared).start()
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not any_port:
            raise
        await _site(runner, listening_host(host), 0, tls, shared=False).start()


def _site(
    runner: web.AppRunner, host: str, port: int, tls: ssl.SSLContext | None, *, shared: bool
) -> web.TCPSite | web.SockSite:
    if host != EVERY_ADDRESS:
        return web.TCPSite(runner, host, port, ssl_context=tls, reuse_port=shared or None)
    # asyncio makes a socket of its own for one family alone.
    both = socket.create_server(
        (host, port), family=socket.AF_INET6, backlog=_BACKLOG, reuse_port=shared, dualstack_ipv6=True
    )
    return web.SockSite(runner, both, ssl_context=tls)
