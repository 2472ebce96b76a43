"""Push of a process' metrics to an OpenTelemetry collector, by OpenTelemetry's own exporters.

What is sent is read from the registry that `/metrics` shows. So there is one set of counters, and a request pays
nothing more for the push.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Exemplar, Sample

from cluster.telemetry.otel_names import OtelName, otel_name
from cluster.telemetry.otlp import OtlpTarget, Signal, open_exporter

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricExporter, MetricsData

_LOG = logging.getLogger(__name__)
_TIMEOUT_MS = 5_000.0
_LAST_S = 2.0
"""Longest wait for the last push, seconds."""


@dataclass(frozen=True, slots=True)
class PushPlan:
    """Plan of a process' pushes."""

    target: OtlpTarget
    period_s: float
    """Seconds between two pushes."""
    resource: Mapping[str, str]
    """Description of the process by OpenTelemetry's names, such as service.name."""
    names: Mapping[str, OtelName] = field(default_factory=dict)
    """Names in OpenTelemetry by names in Prometheus; other metrics keep theirs."""


class MetricPush:
    """Regular push, from a thread of its own. A push that fails is lost; the next one has the sums."""

    def __init__(self, plan: PushPlan, registry: CollectorRegistry) -> None:
        """Start to push.

        Raises:
            SettingsError: the packages of the extra `otel` are missing.
        """
        self._plan = plan
        self._registry = registry
        self._exporter: MetricExporter = open_exporter(plan.target, Signal.METRICS)
        self._began_ns = time.time_ns()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metric-push", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Push once more, as far as the collector answers soon, and stop."""
        self._over.set()
        self._thread.join(_LAST_S)
        # This ends a push that still tries.
        self._exporter.shutdown(_LAST_S * 1000.0)
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._plan.period_s):
            self._push()
        self._push()

    def _push(self) -> None:
        try:
            data = metrics_data(self._registry.collect(), self._plan.resource, self._plan.names, self._began_ns)
            self._exporter.export(data, _TIMEOUT_MS)
        except Exception:  # noqa: BLE001 - whatever it is, the next push must still come
            _LOG.warning("metrics.not_pushed", exc_info=True)


def open_push(plan: PushPlan | None, registry: CollectorRegistry) -> MetricPush | None:
    """Start to push a registry; None where nothing is to be pushed.

    Raises:
        SettingsError: the packages of the extra `otel` are missing.
    """
    return None if plan is None else MetricPush(plan, registry)


def metrics_data(
    families: Iterable[Family], resource: Mapping[str, str], names: Mapping[str, OtelName], began_ns: int
) -> MetricsData:
    """Return metrics of Prometheus as those of OpenTelemetry.

    Args:
        families: metrics, as a registry collects them.
        resource: as in `PushPlan`.
        names: as in `PushPlan`.
        began_ns: nanoseconds since the Unix epoch at which counters began that don't know when they did.
    """
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    now_ns = time.time_ns()
    made = [_metric(family, names.get(family.name) or otel_name(family.name), began_ns, now_ns) for family in families]
    scope = ScopeMetrics(InstrumentationScope("penstock"), [each for each in made if each is not None], "")
    return MetricsData([ResourceMetrics(Resource.create(dict(resource)), [scope], "")])


def _metric(family: Family, known: OtelName, began_ns: int, now_ns: int) -> Metric | None:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Histogram, Metric, Sum

    total = AggregationTemporality.CUMULATIVE
    data: Gauge | Histogram | Sum
    if family.type == "histogram":
        data = Histogram(list(_histogram_points(family, known, began_ns, now_ns)), total)
    elif family.type == "counter":
        data = Sum(list(_number_points(family, known, began_ns, now_ns)), total, is_monotonic=True)
    elif family.type == "gauge":
        data = Gauge(list(_number_points(family, known, began_ns, now_ns)))
    else:
        return None
    return Metric(known.name, family.documentation, known.unit, data) if data.data_points else None


def _number_points(family: Family, known: OtelName, began_ns: int, now_ns: int) -> Iterator[Any]:
    from opentelemetry.sdk.metrics.export import NumberDataPoint

    for labels, samples in _series(family):
        value = samples.get("_total") or samples.get("")
        if value is not None:
            began = _began_ns(samples, began_ns)
            yield NumberDataPoint(_attributes(labels, known), began, now_ns, value[0].value)


def _histogram_points(family: Family, known: OtelName, began_ns: int, now_ns: int) -> Iterator[Any]:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    for labels, samples in _series(family):
        buckets = samples["_bucket"]
        counts = [int(each.value) for each in buckets]
        yield HistogramDataPoint(
            attributes=_attributes(labels, known),
            start_time_unix_nano=_began_ns(samples, began_ns),
            time_unix_nano=now_ns,
            count=counts[-1],
            sum=samples["_sum"][0].value,
            # In Prometheus a bucket has the observations of all lower ones, too.
            bucket_counts=[count - lower for lower, count in zip((0, *counts), counts, strict=False)],
            explicit_bounds=[float(each.labels["le"]) for each in buckets[:-1]],
            # Prometheus doesn't keep these two; the exporter leaves them out.
            min=None,  # type: ignore[arg-type]
            max=None,  # type: ignore[arg-type]
            exemplars=[_example(each.exemplar) for each in buckets if each.exemplar is not None],
        )


def _series(family: Family) -> Iterator[tuple[dict[str, str], dict[str, list[Sample]]]]:
    """Yield the labels of each series, and its samples by what their names end in."""
    found: dict[tuple[tuple[str, str], ...], dict[str, list[Sample]]] = {}
    for sample in family.samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        found.setdefault(labels, {}).setdefault(sample.name.removeprefix(family.name), []).append(sample)
    for labels, samples in found.items():
        yield dict(labels), samples


def _began_ns(samples: Mapping[str, list[Sample]], began_ns: int) -> int:
    created = samples.get("_created")
    return round(created[0].value * 1e9) if created else began_ns


def _attributes(labels: Mapping[str, str], known: OtelName) -> dict[str, str]:
    # An empty label is no label in Prometheus.
    return {known.attributes.get(name, name): value for name, value in labels.items() if value}


def _example(exemplar: Exemplar) -> Any:
    from opentelemetry.sdk.metrics import Exemplar as Example

    trace_id, span_id = exemplar.labels.get("trace_id"), exemplar.labels.get("span_id")
    return Example(
        filtered_attributes={},
        value=exemplar.value,
        time_unix_nano=round(float(exemplar.timestamp or time.time()) * 1e9),
        span_id=int(span_id, 16) if span_id else None,
        trace_id=int(trace_id, 16) if trace_id else None,
    )
