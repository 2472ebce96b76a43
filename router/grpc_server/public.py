"""The server of the public API, with health and reflection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from cluster.grpc_options import SERVER_OPTIONS
from cluster.settings import RouterSettings
from router.call_context import MAX_HEADER_BYTES
from router.grpc_server.open_server import CallServer, open_server
from router.grpc_server.reflection import reflection_handlers


def public_server(
    settings: RouterSettings,
    handlers: Sequence[grpc.GenericRpcHandler[Any, Any]],
    health_service: Any,
    services: Sequence[str],
    *,
    shared_port: bool,
) -> CallServer:
    """Return a server without a port. `services` are the full names of those that reflection shows."""
    server = open_server(
        settings.grpc_server,
        [
            *SERVER_OPTIONS,
            ("grpc.max_receive_message_length", settings.max_message_bytes),
            # Tokens of issuers may have 16 KiB. By default gRPC begins to refuse headers at random from 8 KiB on.
            ("grpc.max_metadata_size", MAX_HEADER_BYTES),
            ("grpc.absolute_max_metadata_size", MAX_HEADER_BYTES),
            ("grpc.so_reuseport", int(shared_port)),
        ],
    )
    server.add_generic_rpc_handlers(tuple(handlers))
    add_HealthServicer_to_server(health_service, server)
    if settings.reflection:
        server.add_generic_rpc_handlers(reflection_handlers((*services, "grpc.health.v1.Health")))
    return server
