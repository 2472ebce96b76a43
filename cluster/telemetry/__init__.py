"""Structured logs and Prometheus metrics."""

from cluster.telemetry.logs import configure_logging
from cluster.telemetry.metrics import MetricsServer

__all__ = ["MetricsServer", "configure_logging"]
