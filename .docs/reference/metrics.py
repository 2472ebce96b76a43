"""The page of all metrics, from the registries of router, replica and autoscaler. Nothing is started."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from cluster.autoscaler.metrics import AutoscalerMetrics
from cluster.clock import SystemClock
from cluster.models import EngineStats
from deployments.replica.metrics import ReplicaMetrics
from penstock.models import RequestClass
from reference.markdown import code, page, prose, table
from router.identity.attempts import Attempts
from router.identity.metrics import IdentityMetrics
from router.metrics import RouterMetrics
from router.records.genai_metrics import GenAiMetrics
from router.rollout.metrics import RolloutMetrics

INTRO = """Each process serves its metrics at `/metrics` in Prometheus' format:
see [Read metrics](../README.md#read-metrics). A histogram also has the series `_bucket`, `_sum` and `_count`.
Names that end in `_seconds` are seconds, `_bytes` bytes."""


def render() -> str:
    """Return the page."""
    return page(
        "Metrics",
        INTRO,
        _section("Router", "One per router process.", _router()),
        _section("Replica", "One per replica. What a replica does not know yet is left out.", _replica()),
        _section("Autoscaler", "One per autoscaler. Most values come only from the one that leads.", _autoscaler()),
    )


def _section(title: str, text: str, registry: CollectorRegistry) -> str:
    rows = [
        [code(name), kind, ", ".join(code(label) for label in labels), prose(help_text)]
        for name, kind, labels, help_text in sorted(_families(registry))
    ]
    return f"## {title}\n\n{text}\n\n{table(['metric', 'type', 'labels', 'meaning'], rows)}"


def _families(registry: CollectorRegistry) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Yield name, type, labels and help of every metric; labels are known to the objects, not to what they export."""
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            source: Any = collector if isinstance(collector, MetricWrapperBase) else family
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield name, family.type, tuple(source._labelnames), family.documentation


def _router() -> CollectorRegistry:
    metrics = RouterMetrics()
    metrics.watch({}, lambda: 0)
    GenAiMetrics(metrics.registry, ())
    metrics.registry.register(IdentityMetrics(Attempts(0, SystemClock()), ()))
    metrics.registry.register(RolloutMetrics({}))
    return metrics.registry


def _replica() -> CollectorRegistry:
    metrics = ReplicaMetrics("pool", "replica", EngineStats)
    # Anything that is asked of these is there, so every metric is shown.
    metrics.watch(MagicMock(), MagicMock(), MagicMock())
    return metrics.registry


def _autoscaler() -> CollectorRegistry:
    scaler = MagicMock(leading=True)
    scaler.record.steps = [SimpleNamespace(name="demand", value=0.0)]
    scaler.foresight.forecast.judged = {"expert": SimpleNamespace(loss=0.0)}
    scaler.foresight.forecast.outlook.forecasts = {"expert": 0.0}
    scaler.announcements.loads = [SimpleNamespace(tenant="tenant")]
    scaler.announcements.belief.of.return_value.part = 1.0
    scaler.record.demands = [MagicMock(deadline_s=None, request_class=RequestClass.STANDARD)]
    return AutoscalerMetrics(lambda: {"pool": scaler}).registry
