"""OpenTelemetry collectors for tests, over gRPC and over HTTP: they keep what real exporters send."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_api
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as api
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as api_grpc
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """Spans that were received, with the service that sent each, and metrics."""

    endpoint: str = ""
    spans: list[Span] = field(default_factory=list)
    services: dict[bytes, str] = field(default_factory=dict)
    pushes: list[metrics_api.ExportMetricsServiceRequest] = field(default_factory=list)
    """Metrics, as each push brought them."""

    def take(self, request: api.ExportTraceServiceRequest) -> None:
        """Keep what an exporter sent."""
        for resource in request.resource_spans:
            [service] = [each.value.string_value for each in resource.resource.attributes if each.key == "service.name"]
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(span)
                    self.services[span.span_id] = service

    def metrics(self, service: str) -> dict[str, Metric]:
        """Return the newest metrics of a service, by name."""
        found: dict[str, Metric] = {}
        for push in self.pushes:
            for resource in push.resource_metrics:
                if any(each.value.string_value == service for each in resource.resource.attributes):
                    found = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
        return found

    def named(self, name: str, trace_id: str = "") -> list[Span]:
        """Return the spans of a name, of one trace if given."""
        return [span for span in self.spans if span.name == name and trace_id in ("", span.trace_id.hex())]

    def children(self, parent: Span) -> list[Span]:
        """Return the spans right below another one."""
        return [span for span in self.spans if span.parent_span_id == parent.span_id]


def attributes(span: Any) -> dict[str, Any]:
    """Return the attributes of a span, a resource or a point as plain values."""
    return {each.key: _plain(each.value) for each in span.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextlib.asynccontextmanager
async def running_collector(protocol: str) -> AsyncIterator[Collector]:
    """Run a collector on a free port."""
    collector = Collector()
    async with _grpc(collector) if protocol == "grpc" else _http(collector):
        yield collector


@contextlib.asynccontextmanager
async def _grpc(collector: Collector) -> AsyncIterator[None]:
    class Servicer(api_grpc.TraceServiceServicer):
        async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
            collector.take(request)
            return api.ExportTraceServiceResponse()

    class MetricsServicer(metrics_grpc.MetricsServiceServicer):
        async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
            collector.pushes.append(request)
            return metrics_api.ExportMetricsServiceResponse()

    server = grpc.aio.server()
    metrics_grpc.add_MetricsServiceServicer_to_server(MetricsServicer(), server)
    api_grpc.add_TraceServiceServicer_to_server(Servicer(), server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def _http(collector: Collector) -> AsyncIterator[None]:
    async def export(request: web.Request) -> web.Response:
        collector.take(api.ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response(
            body=api.ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )

    async def export_metrics(request: web.Request) -> web.Response:
        collector.pushes.append(metrics_api.ExportMetricsServiceRequest.FromString(await request.read()))
        return web.Response(
            body=metrics_api.ExportMetricsServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )

    app = web.Application()
    app.router.add_post("/v1/metrics", export_metrics)
    app.router.add_post("/v1/traces", export)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield
    finally:
        await runner.cleanup()
