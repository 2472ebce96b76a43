"""Settings of traces, and of metrics that are pushed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator

from cluster.settings.section import Section
from cluster.telemetry.otel_names import OtelName
from cluster.telemetry.otlp import OtlpTarget
from cluster.telemetry.otlp_metrics import PushPlan


class TelemetrySettings(Section):
    """Export to an OpenTelemetry collector. Needs the extra `otel`."""

    otlp_endpoint: str = ""
    """Address of the collector, such as http://127.0.0.1:4317. Empty: nothing is exported, and nothing is paid for it.
    Headers come from the variable OTEL_EXPORTER_OTLP_HEADERS, more attributes of each process from
    OTEL_RESOURCE_ATTRIBUTES."""
    otlp_protocol: Literal["grpc", "http"] = "grpc"
    """Protocol of the collector: `grpc`, usually on port 4317, or `http`, usually on port 4318."""
    trace_ratio: float = Field(default=0.1, ge=0, le=1)
    """Part of the requests whose trace is exported, where the caller does not decide. Requests that miss their SLO or
    fail are exported in any case."""
    trace_text_characters: int = Field(default=0, ge=0, le=65_536)
    """Most characters of a request's prompt and as many of its output that its span has, in the attributes
    `gen_ai.input.messages` and `gen_ai.output.messages`. 0: spans have no text. Whoever reads traces then reads what
    tenants wrote."""
    metrics_s: float = Field(default=15.0, ge=0, le=3600)
    """Seconds between two pushes of all metrics to the collector; 0 pushes none. They are those of `/metrics`."""

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_an_address(cls, address: str) -> str:
        if address and not address.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return address

    @property
    def target(self) -> OtlpTarget | None:
        """The collector; None where there is none."""
        return OtlpTarget(self.otlp_endpoint, self.otlp_protocol) if self.otlp_endpoint else None

    def push(self, resource: Mapping[str, str], names: Mapping[str, OtelName] | None = None) -> PushPlan | None:
        """Return the plan of a process' pushes of metrics; None where nothing is to be pushed. Arguments as there."""
        target = self.target
        return None if target is None or not self.metrics_s else PushPlan(target, self.metrics_s, resource, names or {})
