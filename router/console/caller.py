"""The cluster as the page's users call it: one client for all, and each user's own key with each call."""

from __future__ import annotations

from contextvars import ContextVar

from aiohttp import web

from penstock.client import AsyncClient
from router.console.guard import API, Handler

KEY_HEADER = "X-Penstock-Key"
ABOUT = f"{API}about"
_KEY: ContextVar[str] = ContextVar("penstock_console_key", default="")
"""Key of the request that runs. No other task sees it, and it is gone with its request."""

CLIENT = web.AppKey("client", AsyncClient)


def key_metadata() -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call: the key of the user who asks."""
    key = _KEY.get()
    return (("authorization", f"Bearer {key}"),) if key else ()


def carry_keys(*, allowed: bool, required: bool) -> Handler:
    """Return the middleware that takes the key of a request to the calls that answer it.

    Args:
        allowed: whether keys may travel to the routers, which they may not in the clear over a network.
        required: whether calls without a key are refused here. The routers would take the console's own certificate for
            the caller's, and who reaches the page would be its owner.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        key = request.headers.get(KEY_HEADER, "").strip()
        if not key:
            if required and request.path.startswith(API) and request.path != ABOUT:
                raise web.HTTPUnauthorized(reason="this console needs the API key of each user")
            return await handler(request)
        if not allowed:
            raise web.HTTPForbidden(reason="the key would cross the network in the clear: start the console with --tls")
        if not key.isascii() or not key.isprintable() or " " in key:
            raise web.HTTPUnauthorized(reason="the API key must be printable ASCII without spaces")
        token = _KEY.set(key)
        try:
            return await handler(request)
        finally:
            _KEY.reset(token)

    return middleware
