"""The server of the page."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Collection
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from aiohttp import web

from cluster.addresses import host_port
from cluster.errors import BootstrapError
from penstock.client import AsyncClient
from router.call_context import MAX_HEADER_BYTES
from router.console.bodies import MOST_BYTES
from router.console.caller import CLIENT, carry_keys
from router.console.changes import ChangeRoutes
from router.console.chat import ChatRoutes
from router.console.errors import show_errors
from router.console.guard import add_headers, own_page_only
from router.console.planning import PlanRoutes
from router.console.reads import ReadRoutes
from router.console.registry import RegistryPageRoutes
from router.listen import MalformedRequests, listen

_LOG = logging.getLogger(__name__)
_LOG.addFilter(MalformedRequests(_LOG))
_END_S = 0.5
"""Seconds that open answers may take to end when the console stops."""


@dataclass(frozen=True, slots=True)
class ConsoleFacts:
    """What the page says of its console."""

    target: str
    """Address of the routers."""
    planner: bool = False
    """Whether plans can be made here."""


class ConsoleServer:
    """HTTP server of the console."""

    def __init__(
        self,
        client: AsyncClient,
        facts: ConsoleFacts,
        *,
        keys_allowed: bool = True,
        keys_required: bool = False,
        names: Collection[str] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare a server.

        Args:
            client: client of the routers, which sends what `key_metadata` returns.
            facts: what the page says of its console.
            keys_allowed: whether keys may travel to the routers.
            keys_required: whether calls without a key are refused here.
            names: names under which it is called, beside addresses and localhost.
            tls: TLS of the page; None serves it in the clear.
        """
        self.port = 0
        """After `start`: the port that was bound."""
        self._tls = tls
        own = frozenset(name.lower() for name in names)
        middlewares = (own_page_only(own), carry_keys(allowed=keys_allowed, required=keys_required))
        app = web.Application(client_max_size=MOST_BYTES, middlewares=(show_errors, *middlewares))
        app[CLIENT] = client
        app.on_response_prepare.append(add_headers)
        ReadRoutes(facts.target, planner=facts.planner).add_to(app)
        ChatRoutes().add_to(app)
        ChangeRoutes().add_to(app)
        RegistryPageRoutes().add_to(app)
        if facts.planner:
            PlanRoutes().add_to(app)
        self._static = Path(str(files("router.console") / "static"))
        app.router.add_get("/", self._page)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_static("/static", self._static)
        # A page that leaves ends its calls.
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            logger=_LOG,
            shutdown_timeout=_END_S,
            # A user's key may be a token of an issuer, as long as routers take it.
            max_field_size=MAX_HEADER_BYTES,
        )

    async def start(self, host: str, port: int, *, any_port: bool = False) -> None:
        """Bind a port; 0 takes a free one, and with `any_port` so does one that is in use.

        Raises:
            BootstrapError: it can't be bound.
        """
        await self._runner.setup()
        try:
            await listen(self._runner, host, port, tls=self._tls, any_port=any_port)
        except OSError as error:
            why = f"port {host_port(host, port)} can't be bound: {error.strerror}"
            raise BootstrapError("console", why) from error
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port and all connections. May be called twice."""
        await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.StreamResponse:
        # The page itself tells when routers are away, so the console is of use without them.
        return web.Response(text="ok")

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(self._static / "index.html")
