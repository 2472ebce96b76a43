"""Traces of a router: which calls are exported, and the way of their spans to the collector."""

from __future__ import annotations

import time

from cluster.settings import Settings
from cluster.telemetry.otlp import resource_of
from cluster.telemetry.tracing.context import TraceSampling
from cluster.telemetry.tracing.exporter import SpanSink
from penstock.v1 import records_pb2 as api
from router.call_origin import call_origin
from router.generation.generation import Generation
from router.records.build import missed
from router.records.refusal import Refused, span_of_refusal
from router.records.spans import spans_of
from router.records.texts import texts_of


class Tracing:
    """Traces of one router."""

    def __init__(self, sampling: TraceSampling, sink: SpanSink) -> None:
        self.sampling = sampling
        self._sink = sink

    def take(self, record: api.RequestRecord, generation: Generation) -> None:
        """Export a call that is sampled, failed or missed its SLO."""
        if record.trace_id and (record.sampled or missed(record)):
            most = self.sampling.text_characters
            texts = texts_of(generation.prompt, generation.choices, most) if most and generation.prompt else {}
            self._sink.add(spans_of(record, texts))

    def refused(self, refused: Refused) -> None:
        """Export a request that was refused, if it is sampled, or its refusal is the cluster's."""
        trace = self.sampling.begin(call_origin().parent)
        if trace.own.sampled or refused.of_the_cluster:
            now_ns, took_s = time.time_ns(), time.monotonic() - refused.arrived_at
            self._sink.add((span_of_refusal(refused, trace, now_ns - round(took_s * 1e9), now_ns),))

    def close(self) -> None:
        """Send what is left."""
        self._sink.close()


def open_tracing(settings: Settings, router_id: str) -> Tracing | None:
    """Return a router's traces; None where no collector is named.

    Raises:
        SettingsError: the packages of the extra `otel` are missing.
    """
    telemetry = settings.telemetry
    target = telemetry.target
    if target is None:
        return None
    sampling = TraceSampling(telemetry.trace_ratio, text_characters=telemetry.trace_text_characters)
    return Tracing(sampling, SpanSink(target, resource_of("router", router_id)))
