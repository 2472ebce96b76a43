"""Push of metrics: a collector that speaks OTLP gets what `/metrics` shows, over gRPC and over HTTP."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1 import metrics_pb2
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily

import cluster
from cluster.errors import SettingsError
from cluster.settings import TelemetrySettings
from cluster.telemetry import MetricsServer
from cluster.telemetry.otel_names import OtelName
from cluster.telemetry.otlp import OtlpTarget, resource_of
from cluster.telemetry.otlp_metrics import MetricPush, PushPlan, metrics_data, open_push
from tests.support.collector import attributes, running_collector
from tests.support.ports import free_port
from tests.support.waiting import until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
NAMES = {"gen_ai_time_seconds": OtelName("gen_ai.time", "s", {"error_type": "error.type"})}
RESOURCE = {"service.name": "penstock-router", "service.instance.id": "r-1"}


def plan(endpoint: str, protocol: str) -> PushPlan:
    return PushPlan(OtlpTarget(endpoint, protocol), 0.05, RESOURCE, NAMES)


def filled() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("penstock_calls", "Calls.", ["method"], registry=registry).labels("Generate").inc(3)
    Gauge("penstock_lag_seconds", "Lag.", registry=registry).set(0.25)
    times = Histogram("gen_ai_time_seconds", "Time.", ["error_type"], buckets=(0.1, 1.0), registry=registry)
    for value in (0.05, 0.5, 0.6, 5.0):
        times.labels("").observe(value, {"trace_id": TRACE, "span_id": SPAN} if value > 1 else None)
    times.labels("QUEUE_FULL").observe(0.05)
    return registry


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_a_collector_gets_all_metrics_again_and_again_and_at_the_end(protocol: str) -> None:
    async with running_collector(protocol) as collector:
        registry = filled()
        server = MetricsServer("127.0.0.1", 0, registry, push=plan(collector.endpoint, protocol))

        async def twice() -> bool:
            return len(collector.pushes) >= 2

        await until(twice)
        Counter("penstock_late", "Counted just before the end.", registry=registry).inc()
        await asyncio.to_thread(server.close)
        assert "penstock_late" in collector.metrics("penstock-router")
    [resource] = collector.pushes[0].resource_metrics
    assert attributes(resource.resource).items() >= RESOURCE.items()

    got = collector.metrics("penstock-router")
    calls = got["penstock_calls"].sum
    assert (3.0, True, metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE) == (
        calls.data_points[0].as_double,
        calls.is_monotonic,
        calls.aggregation_temporality,
    )
    assert {"method": "Generate"} == attributes(calls.data_points[0])
    lag = got["penstock_lag_seconds"]
    assert ("s", 0.25) == (lag.unit, lag.gauge.data_points[0].as_double)
    check_histogram(got["gen_ai.time"])


def check_histogram(times: Any) -> None:
    good, bad = times.histogram.data_points
    assert ("s", "Time.") == (times.unit, times.description)
    assert ([1, 2, 1], [0.1, 1.0], 4, 6.15) == (
        list(good.bucket_counts),
        list(good.explicit_bounds),
        good.count,
        pytest.approx(good.sum),
    )
    assert not good.HasField("min")
    assert 0 < good.start_time_unix_nano < good.time_unix_nano
    assert ({}, {"error.type": "QUEUE_FULL"}) == (attributes(good), attributes(bad))
    assert [(TRACE, SPAN, 5.0)] == [
        (each.trace_id.hex(), each.span_id.hex(), each.as_double) for each in good.exemplars
    ]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_a_collector_that_comes_late_gets_the_sums(protocol: str) -> None:
    """Until then pushes fail, and nobody notices but the log."""
    push = MetricPush(plan(f"http://127.0.0.1:{free_port()}", protocol), filled())
    await asyncio.to_thread(push.close)
    async with running_collector(protocol) as collector:
        late = MetricPush(plan(collector.endpoint, protocol), filled())
        await asyncio.to_thread(late.close)
        assert 3.0 == collector.metrics("penstock-router")["penstock_calls"].sum.data_points[0].as_double


def test_counters_without_a_birthday_began_with_the_push() -> None:
    family = CounterMetricFamily("penstock_x", "X.", labels=["pool"])
    family.add_metric(["demo"], 2.0)
    data: Any = metrics_data([family], {}, {}, began_ns=17)
    point = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points[0]
    assert (17, {"pool": "demo"}) == (point.start_time_unix_nano, point.attributes)


def test_metrics_have_the_attributes_of_their_process_that_an_operator_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    """As spans have, so that those of several clusters can be told apart."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=eu,service.name=other")
    data: Any = metrics_data([], resource_of("router", "r-1"), {}, began_ns=17)
    found = data.resource_metrics[0].resource.attributes
    assert {"deployment.environment.name": "eu", "service.name": "penstock-router"}.items() <= found.items()
    assert {"service.version": cluster.__version__, "service.instance.id": "r-1"}.items() <= found.items()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.{protocol}.metric_exporter", None)
    with pytest.raises(SettingsError, match="metrics need the extra 'otel'"):
        open_push(plan("http://127.0.0.1:4317", protocol), CollectorRegistry())


def test_without_a_collector_or_a_period_nothing_is_pushed() -> None:
    threads = threading.active_count()
    assert TelemetrySettings().push({}) is None
    assert TelemetrySettings(otlp_endpoint="http://127.0.0.1:4317", metrics_s=0).push({}) is None
    assert open_push(None, CollectorRegistry()) is None
    assert threads == threading.active_count()
    made = TelemetrySettings(otlp_endpoint="http://127.0.0.1:4318", otlp_protocol="http", metrics_s=7).push(RESOURCE)
    assert PushPlan(OtlpTarget("http://127.0.0.1:4318", "http"), 7.0, RESOURCE) == made
