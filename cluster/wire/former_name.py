"""The replicas' service under the name that it has in release 0.2, so that a cluster can be updated step by step.

The messages are the same; only the name of their package has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc

from penstock.internal.v1 import replica_pb2

NAME: str = replica_pb2.DESCRIPTOR.services_by_name["ReplicaService"].full_name
FORMER_NAME = "penstock.v1.ReplicaService"


class FormerNameChannel:
    """Channel to a replica of the former release; stubs use it like any other."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._channel.unary_unary(method.replace(NAME, FORMER_NAME), *args, **kwargs)

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._channel.stream_stream(method.replace(NAME, FORMER_NAME), *args, **kwargs)


class FormerNameServer:
    """Server to which generated code adds the service a second time, for routers of the former release."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: tuple[grpc.GenericRpcHandler[Any, Any], ...]) -> None:
        """Leave these out: they have the present name. The same methods come again, by name."""

    def add_registered_method_handlers(self, _service: str, methods: Mapping[str, Any]) -> None:
        handler = grpc.method_handlers_generic_handler(FORMER_NAME, dict(methods))
        self._server.add_generic_rpc_handlers((handler,))
