"""Names under which a router on its user's own machine may be called.

A page of a browser may call a router on the same machine under the name of its own server, once that name leads to
127.0.0.1 (DNS rebinding). The browser then takes both for the same origin. Without keys nothing else would stop it.
"""

from __future__ import annotations

from aiohttp import web

from cluster.addresses import is_own_name
from router.http.calls import Handler


@web.middleware
async def refuse_foreign_hosts(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a request under a name that other machines may have."""
    host = request.headers.get("Host", "")
    if host and not is_own_name(host):
        raise web.HTTPMisdirectedRequest(reason=f"this router is called localhost, not {host[:80]}")
    return await handler(request)
