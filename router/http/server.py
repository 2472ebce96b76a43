"""The server of the HTTP API."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass

from aiohttp import web

from cluster.addresses import host_port
from cluster.errors import BootstrapError
from cluster.lifecycle import TaskOwner
from cluster.settings import HttpSettings, RouterSettings, is_loopback
from cluster.trust.tls import TlsFiles
from router.admin.servicer import AdminServicer
from router.call_context import MAX_HEADER_BYTES
from router.embeddings.servicer import EmbeddingServicer
from router.http.announced.routes import AnnouncedRoutes
from router.http.anthropic.routes import MessagesRoutes
from router.http.calls import Calls, Handler, name_answer
from router.http.completions.routes import CompletionRoutes
from router.http.cors import allow_origins
from router.http.drain import Drain
from router.http.embeddings import EmbeddingRoutes
from router.http.event_stream import SILENCES, Silences
from router.http.files.routes import FileRoutes
from router.http.hosts import refuse_foreign_hosts
from router.http.idle import IdleConnections, most_connections
from router.http.openapi.routes import DescriptionRoutes
from router.http.registry.adapters import AdapterRoutes
from router.http.registry.routes import RegistryRoutes
from router.http.responses.routes import ResponseRoutes
from router.http.responses.runs import ResponseRuns
from router.http.routes import Routes
from router.http.tokenizer import TokenizerRoutes
from router.http.whoami import CallerRoutes
from router.jobs import JobTools
from router.listen import MalformedRequests, listen

_END_S = 0.2
"""Seconds that connections may take to end after their calls have."""
_REST_S = 1.0
"""Seconds for which the rest of a body that nobody reads is awaited before the connection is closed."""
_IDLE_S = 75.0
"""Seconds for which a connection without a request stays open, also one that never has one."""
_LOG = logging.getLogger(__name__)


_LOG.addFilter(MalformedRequests(_LOG))


@dataclass(frozen=True, slots=True)
class HttpServices:
    """What the routes of the HTTP API call."""

    calls: Calls
    admin: AdminServicer
    embeddings: EmbeddingServicer
    jobs: JobTools
    responses: ResponseRuns


def build_http(
    settings: RouterSettings, services: HttpServices, tls: TlsFiles | None, *, shared_port: bool
) -> HttpServer | None:
    """Return a server without a port yet; None where the HTTP API is off."""
    if settings.http.port is None:
        return None
    context = tls.server_context() if tls is not None else None
    return HttpServer(settings.http, settings.host, services, context, shared_port=shared_port)


class HttpServer:
    """HTTP server of a router process."""

    def __init__(
        self,
        settings: HttpSettings,
        host: str,
        services: HttpServices,
        tls: ssl.SSLContext | None,
        *,
        shared_port: bool,
    ) -> None:
        """`shared_port` lets several processes listen on one port."""
        self.port = settings.port or 0
        """After `start`: the port that was bound."""
        self.any_port = False
        """Whether a free port is taken where this one is in use."""
        self._host = host
        self._tls = tls
        self._shared_port = shared_port
        self._runs = services.responses
        self._drain, self._idle = Drain(), IdleConnections(most_connections())
        self._owner = TaskOwner("http")
        calls = services.calls
        self.app = app = web.Application(client_max_size=settings.max_body_bytes)
        app[SILENCES] = Silences()
        app.middlewares.append(self._watch)
        if settings.cors_origins:
            allow_origins(app, settings.cors_origins)
        app.on_response_prepare.append(name_answer)
        app.middlewares.append(calls.guard)
        if calls.open and is_loopback(host):
            app.middlewares.append(refuse_foreign_hosts)
        DescriptionRoutes().add_to(app)
        Routes(calls, self._drain).add_to(app)
        CompletionRoutes(calls).add_to(app)
        CallerRoutes(calls, services.admin).add_to(app)
        AdapterRoutes(calls, services.admin).add_to(app)
        RegistryRoutes(calls, services.admin).add_to(app)
        AnnouncedRoutes(calls, services.admin).add_to(app)
        TokenizerRoutes(calls).add_to(app)
        MessagesRoutes(calls).add_to(app)
        self._files = FileRoutes(calls, services.jobs, settings)
        self._files.add_to(app)
        EmbeddingRoutes(calls, services.embeddings).add_to(app)
        ResponseRoutes(calls, self._runs, settings.max_body_bytes).add_to(app)
        # A client that leaves ends its request, also one that waits for a whole answer.
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            logger=_LOG,
            shutdown_timeout=_END_S,
            keepalive_timeout=_IDLE_S,
            lingering_time=_REST_S,
            max_field_size=MAX_HEADER_BYTES,
        )

    @web.middleware
    async def _watch(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that a connection is busy. One function for all who ask: each would take a frame of every stream."""
        connection = request.protocol
        self._idle.began(connection)
        try:
            response = await handler(request)
        finally:
            self._idle.ended(connection)
        self._drain.answered(response)
        return response

    async def start(self) -> None:
        """Bind the port.

        Raises:
            BootstrapError: it can't be bound.
        """
        await self._runner.setup()
        try:
            await listen(
                self._runner,
                self._host,
                self.port,
                tls=self._tls,
                shared=self._shared_port,
                any_port=self.any_port,
            )
        except OSError as error:
            address = host_port(self._host, self.port)
            raise BootstrapError("router", f"HTTP port {address} can't be bound: {error.strerror}") from error
        self.port = self._runner.addresses[0][1]
        self._owner.spawn(self._idle.keep(lambda: self._runner.server), "idle")
        self._runs.start()

    async def drain(self, seconds: float) -> None:
        """Refuse new uploads and batches. Wait for responses that run without a connection, for so long at most.

        Connections without a request close now, others with the end of their answer, so that clients turn to another
        router.
        """
        self._drain.begin(self._runner.server, self._idle.busy)
        self._files.drain()
        await self._runs.drain(seconds)

    async def stop(self) -> None:
        """Close the port and all connections. May be called twice."""
        await self._owner.close()
        await self._runner.cleanup()
        await self._files.close()
        await self._runs.close()
