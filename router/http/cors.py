"""Calls from pages of other origins, which a browser makes only where the server allows them (CORS)."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from router.http.calls import Handler

_METHODS = "GET, POST, PUT, DELETE"
_DAY = "86400"


def allow_origins(app: web.Application, origins: Sequence[str]) -> None:
    """Let pages of these origins call an application; `*` lets all."""

    def allowed(request: web.Request) -> dict[str, str]:
        origin = request.headers.get("Origin", "")
        if not origin or (origin not in origins and "*" not in origins):
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            # Without this a page sees no request id, and OpenAI's client in it not when to come back.
            "Access-Control-Expose-Headers": "*",
            "Vary": "Origin",
        }

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(allowed(request))

    @web.middleware
    async def preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
        asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        if not asks or not allowed(request):
            return await handler(request)
        headers = {
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", ""),
            "Access-Control-Max-Age": _DAY,
        }
        return web.Response(status=204, headers=headers)

    app.middlewares.append(preflight)
    app.on_response_prepare.append(add_headers)
