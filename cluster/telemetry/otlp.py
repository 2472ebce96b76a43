"""Ways to an OpenTelemetry collector, by OpenTelemetry's own exporters."""

from __future__ import annotations

import enum
import importlib
from dataclasses import dataclass
from typing import Any

import cluster
from cluster.errors import SettingsError

_PACKAGE = "opentelemetry.exporter.otlp.proto"


@dataclass(frozen=True, slots=True)
class OtlpTarget:
    """Where an OpenTelemetry collector listens."""

    endpoint: str
    """http://host:port or https://host:port."""
    protocol: str = "grpc"
    """"grpc" or "http"."""


class Signal(enum.Enum):
    """What is sent: name in the error, module and class of the exporter, and path over HTTP."""

    TRACES = ("traces", "trace_exporter", "OTLPSpanExporter", "/v1/traces")
    METRICS = ("metrics", "metric_exporter", "OTLPMetricExporter", "/v1/metrics")


def resource_of(process: str, instance: str) -> dict[str, str]:
    """Return the description of a process by OpenTelemetry's names. `process`: router, replica or autoscaler."""
    return {
        "service.name": f"penstock-{process}",
        "service.version": cluster.__version__,
        "service.instance.id": instance,
    }


def open_exporter(target: OtlpTarget, signal: Signal) -> Any:
    """Return OpenTelemetry's exporter of a signal for a target.

    Raises:
        SettingsError: the packages of the extra `otel` are missing.
    """
    what, module, exporter, path = signal.value
    try:
        loaded = importlib.import_module(f"{_PACKAGE}.{target.protocol}.{module}")
    except ImportError as error:
        raise SettingsError(f"telemetry.otlp_endpoint: {what} need the extra 'otel' ({error})") from error
    options: dict[str, Any] = {"endpoint": target.endpoint}
    if target.protocol == "http":
        options["endpoint"] = target.endpoint.rstrip("/") + path
    else:
        options["insecure"] = not target.endpoint.startswith("https://")
    return getattr(loaded, exporter)(**options)
