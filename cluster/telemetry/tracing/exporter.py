"""Export of spans to an OpenTelemetry collector, by OpenTelemetry's own SDK."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cluster.telemetry.otlp import OtlpTarget, Signal, open_exporter
from cluster.telemetry.tracing.span import Span, SpanKind

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

MOST_UNSENT = 8_192
"""Most spans that wait to be sent. While the collector is away, later ones are lost."""


class SpanSink:
    """Way of spans to a collector. It sends from a thread of its own. Not for several threads."""

    def __init__(self, target: OtlpTarget, resource: Mapping[str, str]) -> None:
        """`resource` describes this process by OpenTelemetry's names, such as service.name.

        Raises:
            SettingsError: the packages of the extra `otel` are missing.
        """
        exporter: SpanExporter = open_exporter(target, Signal.TRACES)
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._resource = Resource.create(dict(resource))
        self._processor = BatchSpanProcessor(exporter, max_queue_size=MOST_UNSENT)

    def add(self, spans: Iterable[Span]) -> None:
        """Send some spans soon."""
        for span in spans:
            self._processor.on_end(_readable(span, self._resource))

    def close(self) -> None:
        """Send what is left, as far as the collector answers within some seconds."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]  # missing in OpenTelemetry


def _readable(span: Span, resource: Any) -> ReadableSpan:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags, TraceState
    from opentelemetry.trace import SpanKind as Kind

    state = TraceState.from_header([span.state]) if span.state else None

    def context(trace_id: str, span_id: str) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=flags, trace_state=state)

    kinds = {SpanKind.SERVER: Kind.SERVER, SpanKind.CLIENT: Kind.CLIENT, SpanKind.INTERNAL: Kind.INTERNAL}
    return ReadableSpan(
        name=span.name,
        context=context(span.trace_id, span.span_id),
        parent=context(span.trace_id, span.parent_id) if span.parent_id else None,
        resource=resource,
        attributes=dict(span.attributes),
        links=[Link(context(each.trace_id, each.span_id), dict(each.attributes)) for each in span.links],
        kind=kinds[span.kind],
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope("penstock"),
    )
