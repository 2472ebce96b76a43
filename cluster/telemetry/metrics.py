"""Metrics of a process: its HTTP endpoint for Prometheus and for health probes, and their push."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from cluster.addresses import listening_host
from cluster.telemetry.otlp_metrics import PushPlan, open_push

LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0, 600.0, 1800.0,
)  # fmt: skip
"""Bounds of latency histograms in seconds, from one decode step to a long answer or the wait of batch work."""


class MetricsServer:
    """HTTP server of /metrics and of yes-or-no probes, on its own threads."""

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        probes: Mapping[str, Callable[[], bool]] | None = None,
        push: PushPlan | None = None,
    ) -> None:
        """Start to listen.

        Args:
            host: address to listen on.
            port: 0 to 65535; 0 takes a free one.
            registry: metrics that /metrics shows.
            probes: functions by path, such as /readyz: true answers 200, false 503. Called on any thread.
            push: plan of pushes to a collector; None pushes nothing.

        Raises:
            SettingsError: packages for the push are missing.
        """
        self._host = listening_host(host)
        server, thread = start_http_server(port, addr=self._host, registry=registry)
        self._server: WSGIServer = server
        self._thread: threading.Thread = thread
        self.port = int(self._server.server_port)
        if probes:
            self._server.set_app(_with_probes(self._server.get_app(), probes))
        self._push = open_push(push, registry)

    def close(self) -> None:
        """Push for the last time, stop serving and free the port."""
        if self._push is not None:
            self._push.close()
        closer = threading.Thread(target=self._server.shutdown)
        closer.start()
        while closer.is_alive():
            # The server checks for its end twice a second, and at every connection.
            with contextlib.suppress(OSError):
                socket.create_connection((self._host, self.port), timeout=1.0).close()
            closer.join(0.02)
        self._server.server_close()
        self._thread.join()


def _with_probes(metrics: Any, probes: Mapping[str, Callable[[], bool]]) -> Callable[..., Iterable[bytes]]:
    def app(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        probe = probes.get(environ.get("PATH_INFO", ""))
        if probe is None:
            answer: Iterable[bytes] = metrics(environ, start_response)
            return answer
        good = probe()
        start_response("200 OK" if good else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ok\n" if good else b"no\n"]

    return app
