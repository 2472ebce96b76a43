"""gRPC calls of the public API: a server whose writes cost less than those of grpc.aio, and the same to handlers."""

from router.grpc_server.call import Call
from router.grpc_server.open_server import CallServer, open_server

__all__ = ["Call", "CallServer", "open_server"]
