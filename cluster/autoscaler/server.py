"""HTTP endpoints of a process: /metrics, /healthz (its loops run) and /readyz (it can do its work)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from cluster.addresses import family_of, listening_host


class ObservedServer:
    """HTTP server on threads of its own."""

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        healthy: Callable[[], bool],
        ready: Callable[[], bool],
    ) -> None:
        """Listen at once; port 0 takes a free one. The callables are called on other threads."""
        bound = listening_host(host)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.split("?")[0]
                if path == "/metrics":
                    self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
                elif path in ("/healthz", "/readyz"):
                    good = healthy() if path == "/healthz" else ready()
                    self._answer(200 if good else 503, "text/plain", b"ok\n" if good else b"not ok\n")
                else:
                    self._answer(404, "text/plain", b"not found\n")

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing: probes come every few seconds."""

        class Server(ThreadingHTTPServer):
            address_family = family_of(bound)
            daemon_threads = True

        self._server = Server((bound, port), Handler)
        self.port = int(self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
