"""The gRPC server of the public API. Its writes cost less than those of grpc.aio; handlers see no difference."""

from router.grpc_server.aio_context import call_context
from router.grpc_server.call import Call
from router.grpc_server.open_server import CallServer, open_server

__all__ = ["Call", "CallServer", "call_context", "open_server"]
