"""The Prometheus endpoint of a process."""

from __future__ import annotations

import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Seconds; from one decode step to a long wait."""


class MetricsServer:
    """Serves /metrics from a thread of its own."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """Listen at once; port 0 takes a free one."""
        server, thread = start_http_server(port, addr=host, registry=registry)
        self._server: WSGIServer = server
        self._thread: threading.Thread = thread
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """Stop serving and free the port; takes up to half a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
