"""Names under which a router on its user's own machine may be called.

A page of a browser may call a router on the same machine under the name of its own server, once that name leads to
127.0.0.1 (DNS rebinding). The browser then takes both for the same origin. Without keys nothing else would stop it.
"""

from __future__ import annotations

import ipaddress
import re

from aiohttp import web

from router.http.calls import Handler

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:\d+)?")


@web.middleware
async def refuse_foreign_hosts(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a request under a name that other machines may have."""
    host = request.headers.get("Host", "")
    if host and not is_own(host):
        raise web.HTTPMisdirectedRequest(reason=f"this router is called localhost, not {host[:80]}")
    return await handler(request)


def is_own(host: str) -> bool:
    """Return whether a Host header is an address, or a name that leads to this machine only."""
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found[1].strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
