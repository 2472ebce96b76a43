"""The Prometheus endpoint of a process."""

from __future__ import annotations

import contextlib
import socket
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
        self._host = host
        self._server: WSGIServer = server
        self._thread: threading.Thread = thread
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """Stop serving and free the port."""
        closer = threading.Thread(target=self._server.shutdown)
        closer.start()
        while closer.is_alive():
            # The server looks up twice a second, or when somebody calls.
            with contextlib.suppress(OSError):
                socket.create_connection((self._host, self.port), timeout=1.0).close()
            closer.join(0.02)
        self._server.server_close()
        self._thread.join()
