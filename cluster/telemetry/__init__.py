"""Structured logs and Prometheus metrics."""

from cluster.telemetry.logs import configure_logging
from cluster.telemetry.metrics import MetricsServer
from cluster.telemetry.otlp_metrics import PushPlan

__all__ = ["MetricsServer", "PushPlan", "configure_logging"]
