"""Settings of traces and of metrics that are pushed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from cluster.settings.section import Section


class TelemetrySettings(Section):
    """Export to an OpenTelemetry collector. Needs the extra `otel`."""

    otlp_endpoint: str = ""
    """Address of the collector, such as http://127.0.0.1:4317. Empty: nothing is exported, and nothing is paid for it.
    Headers come from the variable OTEL_EXPORTER_OTLP_HEADERS."""
    otlp_protocol: Literal["grpc", "http"] = "grpc"
    """Protocol of the collector: `grpc`, usually on port 4317, or `http`, usually on port 4318."""
    trace_ratio: float = Field(default=0.1, ge=0, le=1)
    """Part of the requests whose trace is exported, where the caller does not decide. Requests that miss their SLO or
    fail are exported in any case."""

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_an_address(cls, address: str) -> str:
        if address and not address.startswith(("http://", "https://")):
            raise ValueError(f"must begin with http:// or https://, got {address!r}")
        return address
