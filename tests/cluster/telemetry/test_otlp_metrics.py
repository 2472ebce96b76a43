"""Push of metrics: a collector that speaks OTLP gets what `/metrics` shows, over gRPC and over HTTP."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as service_grpc
from opentelemetry.proto.metrics.v1 import metrics_pb2
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from cluster.errors import SettingsError
from cluster.telemetry.otel_names import OtelName
from cluster.telemetry.otlp_metrics import MetricPush, metrics_data, open_metric_exporter
from tests.support.ports import free_port

Pushes = queue.Queue[service.ExportMetricsServiceRequest]
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
NAMES = {"gen_ai_time_seconds": OtelName("gen_ai.time", "s", {"error_type": "error.type"})}
RESOURCE = {"service.name": "penstock-router", "service.instance.id": "r-1"}


@contextmanager
def grpc_collector(pushes: Pushes) -> Iterator[str]:
    class Collector(service_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the RPC
            pushes.put(request)
            return service.ExportMetricsServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(1))
    service_grpc.add_MetricsServiceServicer_to_server(Collector(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextmanager
def http_collector(pushes: Pushes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert "/v1/metrics" == self.path
            pushes.put(service.ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


COLLECTORS = {"grpc": grpc_collector, "http": http_collector}


def filled() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("penstock_calls", "Calls.", ["method"], registry=registry).labels("Generate").inc(3)
    Gauge("penstock_lag_seconds", "Lag.", registry=registry).set(0.25)
    times = Histogram("gen_ai_time_seconds", "Time.", ["error_type"], buckets=(0.1, 1.0), registry=registry)
    for value in (0.05, 0.5, 0.6, 5.0):
        times.labels("").observe(value, {"trace_id": TRACE, "span_id": SPAN} if value > 1 else None)
    times.labels("QUEUE_FULL").observe(0.05)
    return registry


def received(push: service.ExportMetricsServiceRequest) -> dict[str, metrics_pb2.Metric]:
    scopes = [scope for resource in push.resource_metrics for scope in resource.scope_metrics]
    return {metric.name: metric for scope in scopes for metric in scope.metrics}


def attributes(point: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in point.attributes}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", COLLECTORS)
def test_a_collector_gets_all_metrics_again_and_again_and_at_the_end(protocol: str) -> None:
    pushes: Pushes = queue.Queue()
    with COLLECTORS[protocol](pushes) as endpoint:
        registry = filled()
        push = MetricPush(registry, open_metric_exporter(endpoint, protocol), RESOURCE, NAMES, period_s=0.05)
        first, second = pushes.get(timeout=10), pushes.get(timeout=10)
        Counter("penstock_late", "Counted just before the end.", registry=registry).inc()
        push.close()
    assert received(first).keys() == received(second).keys()
    last = second
    while not pushes.empty():
        last = pushes.get()
    assert "penstock_late" in received(last)
    resource = {each.key: each.value.string_value for each in first.resource_metrics[0].resource.attributes}
    assert resource.items() >= RESOURCE.items()

    got = received(first)
    calls = got["penstock_calls"].sum
    assert (3.0, True, metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE) == (
        calls.data_points[0].as_double,
        calls.is_monotonic,
        calls.aggregation_temporality,
    )
    assert {"method": "Generate"} == attributes(calls.data_points[0])
    lag = got["penstock_lag_seconds"]
    assert ("s", 0.25) == (lag.unit, lag.gauge.data_points[0].as_double)

    times = got["gen_ai.time"]
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


@pytest.mark.slow
def test_a_collector_that_is_away_disturbs_nobody_and_gets_the_sums_later() -> None:
    port, pushes = free_port(), queue.Queue[service.ExportMetricsServiceRequest]()
    exporter = open_metric_exporter(f"http://127.0.0.1:{port}", "http")
    push = MetricPush(filled(), exporter, RESOURCE, NAMES, period_s=0.05)
    push.close()
    assert pushes.empty()


def test_counters_without_a_birthday_began_with_the_push() -> None:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily("penstock_x", "X.", labels=["pool"])
    family.add_metric(["demo"], 2.0)
    data = metrics_data([family], {}, {}, began_ns=17)
    point = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points[0]
    assert (17, {"pool": "demo"}) == (point.start_time_unix_nano, point.attributes)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.metric_exporter", None)
    with pytest.raises(SettingsError, match="extra 'otel'"):
        open_metric_exporter("http://127.0.0.1:4317", "grpc")
