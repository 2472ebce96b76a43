"""gRPC calls of the public API: a server whose writes cost less than those of grpc.aio, and the same to handlers."""

from router.calls.opening import CallServer, open_server

__all__ = ["CallServer", "open_server"]
