"""Spans of attempts inside an engine, as vLLM's own front end names them. Our front end replaces vLLM's."""

from __future__ import annotations

from collections.abc import Callable

from cluster.clock import Clock
from cluster.settings import TelemetrySettings
from cluster.telemetry import otlp
from cluster.telemetry.tracing.context import read_trace_parent, span_of
from cluster.telemetry.tracing.exporter import SpanSink
from cluster.telemetry.tracing.span import Attribute, Span, SpanKind
from deployments.replica.output_log import OutputLog

NAME = "llm_request"


class EngineSpans:
    """Spans of one replica. Only sampled requests have one."""

    def __init__(self, sink: SpanSink | None, now_ms: Callable[[], int]) -> None:
        """Without a sink there are none. `now_ms` returns milliseconds since the Unix epoch."""
        self._sink = sink
        self._now_ms = now_ms

    def after(self, tell: Callable[[OutputLog], None]) -> Callable[[OutputLog], None]:
        """Return a function that tells of an attempt that ended, and exports it."""
        if (sink := self._sink) is None:
            return tell

        def ended(log: OutputLog) -> None:
            tell(log)
            if log.trace_parent and (span := span_of_attempt(log, self._now_ms())) is not None:
                sink.add((span,))

        return ended

    def close(self) -> None:
        """Send what is left."""
        if self._sink is not None:
            self._sink.close()


def open_engine_spans(telemetry: TelemetrySettings, pool: str, replica_id: str, clock: Clock) -> EngineSpans:
    """Return a replica's spans. There are none where no collector is named.

    Raises:
        SettingsError: the packages of the extra `otel` are missing.
    """
    target = telemetry.target
    sink = None if target is None else SpanSink(target, resource_of(pool, replica_id))
    return EngineSpans(sink, clock.wall_ms)


def resource_of(pool: str, replica_id: str) -> dict[str, str]:
    """Return the description of a replica by OpenTelemetry's names."""
    return {**otlp.resource_of("replica", replica_id), "penstock.pool": pool}


def span_of_attempt(log: OutputLog, now_ms: int) -> Span | None:
    """Return the span of an attempt that has just ended; None where its trace is not sampled."""
    parent, end = read_trace_parent(log.trace_parent), log.end
    if parent is None or not parent.sampled or end is None:
        return None
    ended_ns = now_ms * 1_000_000
    took_s = end.prefill_s + end.decode_s
    attributes: dict[str, Attribute] = {
        "gen_ai.request.id": log.request_id,
        "gen_ai.latency.time_in_queue": end.engine_wait_s,
        "gen_ai.latency.time_to_first_token": end.prefill_s,
        "gen_ai.latency.time_in_model_prefill": max(0.0, end.prefill_s - end.engine_wait_s),
        "gen_ai.latency.time_in_model_decode": end.decode_s,
        "gen_ai.latency.time_in_model_inference": max(0.0, took_s - end.engine_wait_s),
        "gen_ai.latency.e2e": took_s,
        "gen_ai.usage.completion_tokens": end.output_tokens,
        "gen_ai.usage.cached_tokens": end.cached_tokens,
        "penstock.gpu_seconds": end.gpu_seconds,
        "penstock.finish_reason": end.reason.value,
    }
    return Span(
        name=NAME,
        trace_id=parent.trace_id,
        span_id=span_of(f"{NAME} {log.attempt}"),
        parent_id=parent.span_id,
        start_ns=ended_ns - round(took_s * 1e9),
        end_ns=ended_ns,
        kind=SpanKind.SERVER,
        attributes=attributes,
        error=end.error,
    )
