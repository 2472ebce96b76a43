"""What keeps other pages of a browser away from the console, and hostile text in the page from running.

A page of another server may send requests here, and its server's name may be made to lead to this machine (DNS
rebinding). So the console answers under its own names only, its API only to its own page, and nothing in the page may
load or run what does not come from the console.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from aiohttp import web

from cluster.addresses import is_own_name, name_of

Handler = Callable[..., Awaitable[web.StreamResponse]]

PAGE_HEADER = "X-Penstock-Console"
"""Header that the page sends with each call. A browser sends it to another origin only if that allows it, and the
console never does."""
API = "/api/"
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Text can't become HTML: there is no policy that could make it.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def own_page_only(names: Collection[str]) -> Handler:
    """Return the middleware that refuses requests of other pages.

    Args:
        names: names under which the console is called, beside addresses and localhost; lower case.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get("Host", "")
        if not is_own_name(host) and name_of(host) not in names:
            raise web.HTTPMisdirectedRequest(reason=f"this console is not called {host[:80]!r}: start it with --name")
        if request.path.startswith(API):
            _check_caller(request, host)
        return await handler(request)

    return middleware


def _check_caller(request: web.Request, host: str) -> None:
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise web.HTTPForbidden(reason="the console answers to its own page only")
    if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        raise web.HTTPForbidden(reason="the console answers to its own page only")
    if PAGE_HEADER not in request.headers:
        raise web.HTTPForbidden(reason=f"the header {PAGE_HEADER} is missing")
    if request.method not in ("GET", "HEAD") and request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(reason="the content type must be application/json")


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers of every answer."""
    response.headers.update(_HEADERS)
    # The page's files are small, and a new console must not meet the page of an old one.
    response.headers["Cache-Control"] = "no-store" if request.path.startswith(API) else "no-cache"
