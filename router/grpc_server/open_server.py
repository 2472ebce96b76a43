"""The choice of the server for the public API."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, Protocol, cast

import grpc

from router.grpc_server.core import core, missing_in
from router.grpc_server.server import DirectServer

_LOG = logging.getLogger(__name__)


class CallServer(Protocol):
    """The part of `grpc.aio.Server` that a router uses."""

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]], /) -> None:
        """Serve the methods of these handlers."""

    def add_registered_method_handlers(self, service: str, handlers: Any, /) -> None:
        """Take handlers that generated code also gives to `add_generic_rpc_handlers`."""

    def add_insecure_port(self, address: str, /) -> int:
        """Bind host:port and return the port; port 0 takes a free one. RuntimeError: it can't be bound."""

    def add_secure_port(self, address: str, credentials: grpc.ServerCredentials, /) -> int:
        """Bind host:port with TLS and return the port. RuntimeError: it can't be bound."""

    async def start(self) -> None:
        """Begin to serve calls."""

    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, give open ones `grace` seconds, end the rest, and close the port."""


def open_server(kind: Literal["direct", "aio"], options: Sequence[tuple[str, Any]]) -> CallServer:
    """Create a server with these channel arguments. `direct` falls back to grpc.aio's where this version of gRPC lacks
    what it needs.
    """
    if kind == "direct":
        if not (missing := missing_in(core)):
            return DirectServer(options)
        _LOG.warning("router.grpc_aio_instead", extra={"grpc": grpc.__version__, "missing": missing})
    return cast(CallServer, grpc.aio.server(options=list(options)))
