"""Histograms of OpenTelemetry's conventions for generative AI, in a router's registry."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection

from prometheus_client import CollectorRegistry, Histogram

from cluster.settings import Settings
from cluster.telemetry import PushPlan
from cluster.telemetry.otel_names import OtelName, attribute_label, metric_name
from cluster.telemetry.otlp import resource_of
from penstock.v1 import records_pb2 as api
from router.call_origin import call_origin
from router.generation.generation import Generation
from router.records.build import missed
from router.records.genai import METRICS, GenAiMetric, Measurement, measurements, refusal
from router.records.refusal import Refused

_JOB = "job"
OTEL_NAMES = {
    metric_name(each.name, each.unit): OtelName(
        each.name, each.unit, {attribute_label(attribute): attribute for attribute in each.attributes}
    )
    for each in METRICS
}
"""Names in OpenTelemetry, by names in Prometheus."""


class GenAiMetrics:
    """Histograms that change once per call, when its record is made."""

    def __init__(self, registry: CollectorRegistry, models: Collection[str]) -> None:
        """`models`: names of the models that the cluster serves."""
        self._models = models
        self._histograms = {each.name: _series(each, registry) for each in METRICS}

    def take(self, record: api.RequestRecord, _generation: Generation | None = None) -> None:
        """Count a call. Its trace, if it is exported, becomes the example of the buckets that the call falls into."""
        traced = record.trace_id and (record.sampled or missed(record))
        example = {"trace_id": record.trace_id, "span_id": record.span_id} if traced else None
        for each in measurements(record):
            self._observe(each, example)

    def refused(self, refused: Refused) -> None:
        """Count a request that was refused. Items of jobs don't count: they are tried again and again."""
        if call_origin().api != _JOB:
            model = refused.model if refused.model in self._models else ""
            took_s = time.monotonic() - refused.arrived_at
            self._observe(refusal(refused.operation, model, took_s, refused.error.reason), None)

    def _observe(self, each: Measurement, example: dict[str, str] | None) -> None:
        labels = tuple(each.attributes[attribute] for attribute in each.metric.attributes)
        self._histograms[each.metric.name](*labels).observe(each.value, example)


def _series(metric: GenAiMetric, registry: CollectorRegistry) -> Callable[..., Histogram]:
    """Return a cached lookup of series by labels."""
    histogram = Histogram(
        metric_name(metric.name, metric.unit),
        f"{metric.text} OpenTelemetry: {metric.name}.",
        [attribute_label(attribute) for attribute in metric.attributes],
        buckets=metric.buckets,
        registry=registry,
    )
    return functools.cache(histogram.labels)


def push_plan(settings: Settings, router_id: str) -> PushPlan | None:
    """Return a router's plan of pushes; None where nothing is to be pushed."""
    return settings.telemetry.push(resource_of("router", router_id), OTEL_NAMES)
