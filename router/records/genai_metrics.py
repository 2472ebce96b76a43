"""Histograms of OpenTelemetry's conventions for generative AI, in a router's registry."""

from __future__ import annotations

import functools
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Histogram

from cluster.telemetry.otel_names import OtelName, attribute_label, metric_name
from penstock.v1 import records_pb2 as api
from router.records.genai import METRICS, GenAiMetric, Measurement, measurements

OTEL_NAMES = {
    metric_name(each.name, each.unit): OtelName(
        each.name, each.unit, {attribute_label(attribute): attribute for attribute in each.attributes}
    )
    for each in METRICS
}
"""Names in OpenTelemetry, by names in Prometheus."""


class GenAiMetrics:
    """Histograms that change once per call, when its record is made."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._histograms = {each.name: _series(each, registry) for each in METRICS}

    def take(self, record: api.RequestRecord) -> None:
        """Count a call. Its trace becomes the example of the buckets that it falls into."""
        example = {"trace_id": record.trace_id, "span_id": record.span_id} if record.trace_id else None
        for each in measurements(record):
            self._observe(each, example)

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
