"""GenAI metrics: what one record is worth, under the names, units and buckets of OpenTelemetry's conventions."""

from __future__ import annotations

import asyncio
import contextvars
import time
import urllib.request
from pathlib import Path

import pytest
from opentelemetry.exporter.prometheus._mapping import map_unit, sanitize_attribute, sanitize_full_name
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from cluster.errors import QueueFullError
from penstock import AsyncClient, InvalidArgumentError
from penstock.v1 import records_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.wire import duration_to_wire
from router.call_origin import OPENAI, CallOrigin, enter_call
from router.records.genai import DURATION, FIRST_TOKEN, METRICS, PER_TOKEN, TOKENS, measurements
from router.records.genai_metrics import OTEL_NAMES, GenAiMetrics
from router.records.refusal import Refused
from tests.support.collector import attributes, running_collector
from tests.support.stack import Stack, request, running_stack, sim_pool
from tests.support.waiting import until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
COMMON = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "penstock",
    "gen_ai.request.model": "demo",
    "gen_ai.response.model": "demo",
}


def attempt(first_s: float | None, ended_s: float) -> api.AttemptRecord:
    found = api.AttemptRecord(ended_at=duration_to_wire(ended_s))
    if first_s is not None:
        found.first_token_at.CopyFrom(duration_to_wire(first_s))
    return found


def record(*choices: api.ChoiceRecord, error: str = "", ttft_s: float | None = 0.5) -> api.RequestRecord:
    made = api.RequestRecord(
        pool="demo",
        total_time=duration_to_wire(3.0),
        error_reason=error,
        usage=types.Usage(prompt_tokens=100, output_tokens=11),
        choices=choices
        or [api.ChoiceRecord(finish_reason=types.FINISH_REASON_STOP, output_tokens=11, attempts=[attempt(0.5, 2.5)])],
        trace_id=TRACE,
        span_id=SPAN,
        sampled=True,
    )
    if ttft_s is not None:
        made.time_to_first_token.CopyFrom(duration_to_wire(ttft_s))
    return made


def worth(of: api.RequestRecord) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for each in measurements(of):
        found.setdefault(each.metric.name, []).append(each.value)
    return found


def test_the_operation_is_that_of_the_prompt() -> None:
    for plain, task, operation in (
        (False, types.MODEL_TASK_GENERATE, "chat"),
        (True, types.MODEL_TASK_GENERATE, "text_completion"),
        (True, types.MODEL_TASK_EMBED, "embeddings"),
    ):
        of = record()
        of.plain_prompt, of.task = plain, task
        assert {operation} == {each.attributes["gen_ai.operation.name"] for each in measurements(of)}


def test_a_good_call_gives_every_metric_once() -> None:
    expected = [
        (DURATION, 3.0, {**COMMON, "error.type": ""}),
        (TOKENS, 100, {**COMMON, "gen_ai.token.type": "input"}),
        (TOKENS, 11, {**COMMON, "gen_ai.token.type": "output"}),
        (PER_TOKEN, pytest.approx(0.2), COMMON),
        (FIRST_TOKEN, 0.5, COMMON),
    ]
    assert expected == [(each.metric, each.value, each.attributes) for each in measurements(record())]


def test_a_pause_between_attempts_counts_as_time_of_tokens() -> None:
    moved = api.ChoiceRecord(
        finish_reason=types.FINISH_REASON_STOP, output_tokens=5, attempts=[attempt(0.5, 1.0), attempt(2.0, 2.5)]
    )
    late = api.ChoiceRecord(
        finish_reason=types.FINISH_REASON_STOP, output_tokens=3, attempts=[attempt(None, 1.0), attempt(2.0, 3.0)]
    )
    assert [0.5, 0.5] == worth(record(moved, late))[PER_TOKEN.name]


def test_a_failed_call_has_a_duration_with_its_reason_and_the_tokens_that_it_used() -> None:
    ended = api.ChoiceRecord(finish_reason=types.FINISH_REASON_ERROR, output_tokens=11, attempts=[attempt(0.5, 2.5)])
    failed = record(ended, error="GENERATION_FAILED")
    assert {DURATION.name: [3.0], TOKENS.name: [100, 11]} == worth(failed)
    assert "GENERATION_FAILED" == next(measurements(failed)).attributes["error.type"]


def test_tokens_and_the_first_token_count_once_however_often_a_client_comes_back() -> None:
    left = api.ChoiceRecord(output_tokens=4, attempts=[attempt(0.5, 1.0)])
    again = record()
    again.resumed = True
    assert {DURATION.name: [3.0], FIRST_TOKEN.name: [0.5]} == worth(record(left))
    assert {DURATION.name, TOKENS.name, PER_TOKEN.name} == worth(again).keys()


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_choice_without_a_second_token_has_no_time_per_token(tokens: int) -> None:
    short = api.ChoiceRecord(
        finish_reason=types.FINISH_REASON_LENGTH, output_tokens=tokens, attempts=[attempt(0.5, 2.5)]
    )
    assert PER_TOKEN.name not in worth(record(short))


def test_embeddings_have_no_tokens_that_come_one_by_one() -> None:
    made = record(api.ChoiceRecord(finish_reason=types.FINISH_REASON_STOP, attempts=[attempt(0.5, 2.5)]))
    made.task = types.MODEL_TASK_EMBED
    assert {DURATION.name, TOKENS.name} == worth(made).keys()
    assert {"embeddings"} == {each.attributes["gen_ai.operation.name"] for each in measurements(made)}


@pytest.mark.parametrize(
    ("model", "origin", "counted"),
    [("demo", OPENAI, "demo"), ("made-up", OPENAI, ""), ("demo", CallOrigin("job"), None)],
)
def test_a_refusal_has_a_duration_and_a_model_that_exists(model: str, origin: CallOrigin, counted: str | None) -> None:
    """Items of jobs are tried again and again, which is no request of anybody."""

    def tell() -> None:
        enter_call(origin)
        metrics.refused(Refused(model, "acme", time.monotonic() - 1.0, QueueFullError("demo", 5, 1.0), "chat"))

    registry = CollectorRegistry()
    metrics = GenAiMetrics(registry, {"demo"})
    contextvars.copy_context().run(tell)
    found = [
        (sample.labels["gen_ai_request_model"], sample.labels["error_type"], sample.value)
        for family in registry.collect()
        for sample in family.samples
        if sample.name.endswith("_count")
    ]
    assert ([] if counted is None else [(counted, "QUEUE_FULL", 1.0)]) == found


def test_names_units_and_attributes_are_those_of_the_conventions() -> None:
    names = {value for name, value in vars(gen_ai_metrics).items() if name.startswith("GEN_AI_")}
    attributes = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    attributes.add(error_attributes.ERROR_TYPE)
    for metric in METRICS:
        assert metric.name in names
        assert set(metric.attributes) <= attributes
        assert list(metric.buckets) == sorted(metric.buckets)
    assert {"s", "{token}"} == {metric.unit for metric in METRICS}


def test_names_in_prometheus_are_those_of_opentelemetrys_exporter() -> None:
    def exported(name: str, unit: str) -> str:
        suffix = map_unit(unit)
        return sanitize_full_name(name) + (f"_{suffix}" if suffix else "")

    assert list(OTEL_NAMES) == [exported(metric.name, metric.unit) for metric in METRICS]
    assert [
        "gen_ai_server_request_duration_seconds",
        "gen_ai_server_time_to_first_token_seconds",
        "gen_ai_server_time_per_output_token_seconds",
        "gen_ai_client_token_usage",
    ] == list(OTEL_NAMES)
    for known in OTEL_NAMES.values():
        assert {sanitize_attribute(each): each for each in known.attributes.values()} == known.attributes


def test_a_trace_that_is_exported_is_the_example_of_its_buckets() -> None:
    registry = CollectorRegistry()
    metrics = GenAiMetrics(registry, {"demo"})
    metrics.take(record())
    for trace_id, sampled in (("", True), (TRACE[::-1], False)):
        later = record()
        later.trace_id, later.sampled = trace_id, sampled
        metrics.take(later)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    examples = {
        (family.name, sample.labels.get("gen_ai_token_type", "")): (sample.exemplar.labels, sample.exemplar.value)
        for family in families
        for sample in family.samples
        if sample.exemplar is not None
    }
    labels = {"trace_id": TRACE, "span_id": SPAN}
    assert {
        ("gen_ai_server_request_duration_seconds", ""): (labels, 3.0),
        ("gen_ai_server_time_to_first_token_seconds", ""): (labels, 0.5),
        ("gen_ai_server_time_per_output_token_seconds", ""): (labels, pytest.approx(0.2)),
        ("gen_ai_client_token_usage", "input"): (labels, 100.0),
        ("gen_ai_client_token_usage", "output"): (labels, 11.0),
    } == examples


# --- a router ---------------------------------------------------------------------------------------------------------


def scrape(stack: Stack, accept: str = "text/plain") -> tuple[str, str]:
    """Return type and content of a router's metrics."""
    asked = urllib.request.Request(
        f"http://127.0.0.1:{stack.routers[0].metrics_port}/metrics", headers={"Accept": accept}
    )
    with urllib.request.urlopen(asked, timeout=5) as reply:  # noqa: S310 - as above
        return reply.headers["Content-Type"], reply.read().decode()


async def test_a_router_counts_each_call_once_and_not_each_token(tmp_path: Path) -> None:
    """Two calls of many tokens change the counters by two: they are counted from the records of calls."""
    async with running_stack(tmp_path, pools={"demo": sim_pool(base_ms=1.0)}) as stack:
        for _ in range(2):
            await stack.inference().Generate(request("one two three", max_tokens=40, ignore_eos=True))

        async def counted() -> bool:
            _, text = await asyncio.to_thread(scrape, stack)
            return 'gen_ai_token_type="output"' in text and _value(text, "gen_ai_client_token_usage_count") == 4

        await until(counted)
        kind, text = await asyncio.to_thread(scrape, stack)
        assert kind.startswith("text/plain")
        open_kind, open_text = await asyncio.to_thread(scrape, stack, "application/openmetrics-text; version=1.0.0")
    assert open_kind.startswith("application/openmetrics-text")
    assert open_text.endswith("# EOF\n")
    assert {
        "gen_ai_server_request_duration_seconds_count": 2.0,
        "gen_ai_server_time_to_first_token_seconds_count": 2.0,
        "gen_ai_server_time_per_output_token_seconds_count": 2.0,
    } == {f"{name}_count": _value(text, f"{name}_count") for name in OTEL_NAMES if name.startswith("gen_ai_server")}
    output = [line for line in text.splitlines() if "token_usage_sum" in line and '"output"' in line]
    assert 80.0 == float(output[0].rpartition(" ")[2])


async def test_a_refusal_has_the_operation_of_its_request(tmp_path: Path) -> None:
    async with running_stack(tmp_path, pools={"demo": sim_pool()}) as stack:
        target = f"127.0.0.1:{stack.routers[0].port}"
        async with AsyncClient(target) as client:
            for call in (
                client.generate("demo", {"role": "user", "content": "hi"}, max_tokens=10**6),
                client.generate("demo", "hi", max_tokens=10**6),
                client.embed("demo", "hi"),
                client.classify("demo", "hi"),
                client.score("demo", "hi", "hi"),
            ):
                with pytest.raises(InvalidArgumentError):
                    await call
        _, text = await asyncio.to_thread(scrape, stack, "application/openmetrics-text; version=1.0.0")
    counted = {
        sample.labels["gen_ai_operation_name"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "gen_ai_server_request_duration_seconds_count"
    }
    assert {"chat": 1.0, "text_completion": 1.0, "embeddings": 3.0} == counted


def _value(text: str, name: str) -> float:
    """Return the sum of a metric's series."""
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name}{{"))


async def test_every_process_pushes_its_metrics_and_a_trace_is_the_example(tmp_path: Path) -> None:
    async with running_collector("grpc") as collector:
        telemetry = {"otlp_endpoint": collector.endpoint, "trace_ratio": 1.0, "metrics_s": 0.2}
        pools, sections = {"demo": sim_pool(base_ms=1.0)}, {"telemetry": telemetry}
        async with running_stack(tmp_path, pools=pools, sections=sections) as stack:
            await stack.inference().Generate(request("one two three", max_tokens=8, ignore_eos=True))

            async def pushed() -> bool:
                both = (collector.metrics("penstock-router"), collector.metrics("penstock-replica"))
                return TOKENS.name in both[0] and "penstock_replica_steps" in both[1]

            await until(pushed)
            _, text = await asyncio.to_thread(scrape, stack, "application/openmetrics-text; version=1.0.0")
    got = collector.metrics("penstock-router")
    assert {each.name for each in METRICS} <= got.keys()
    for metric in METRICS:
        points = got[metric.name].histogram.data_points
        assert metric.unit == got[metric.name].unit
        assert all(list(metric.buckets) == list(point.explicit_bounds) for point in points)
    [duration] = got[DURATION.name].histogram.data_points
    assert {**COMMON, "gen_ai.operation.name": "text_completion"} == attributes(duration)
    [span] = collector.named("text_completion demo")
    assert [span.trace_id] == [each.trace_id for each in duration.exemplars]
    assert f'# {{span_id="{span.span_id.hex()}",trace_id="{span.trace_id.hex()}"}}' in text
    assert got["penstock_router_calls"].sum.data_points
