"""Routes of the API's description."""

from __future__ import annotations

import importlib.metadata
from importlib.resources import files

from aiohttp import web

from router.http.openapi.document import document

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
"""The page loads nothing from anywhere, and calls only the router that it came from."""


class DescriptionRoutes:
    """Handlers of the document and of the page."""

    def __init__(self) -> None:
        self._document = document(importlib.metadata.version("penstock-llm"))
        self._page = (files("router.http.openapi") / "page.html").read_text(encoding="utf-8")

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/openapi.json", self.describe)
        app.router.add_get("/docs", self.page)

    async def describe(self, request: web.Request) -> web.StreamResponse:
        """Return the document."""
        return web.json_response(self._document)

    async def page(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=self._page, content_type="text/html", headers={"Content-Security-Policy": _POLICY})
