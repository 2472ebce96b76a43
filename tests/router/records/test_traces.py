"""Traces of requests, received by a collector over gRPC and over HTTP, against the receipts."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from penstock.v1 import jobs_pb2
from penstock.v1 import types_pb2 as types
from penstock.wire import duration_from_wire
from tests.support.collector import Collector, attributes, running_collector
from tests.support.stack import Stack, collect, request, running_stack, sim_pool, stream_request
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = (("traceparent", f"00-{TRACE}-{CALLER}-01"), ("tracestate", "vendor=1"))
NOT_SAMPLED = (("traceparent", f"00-{TRACE[::-1]}-{CALLER}-00"),)


@pytest.fixture(scope="module", params=["grpc", "http"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def collector(protocol: str) -> AsyncIterator[Collector]:
    async with running_collector(protocol) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, collector: Collector, protocol: str) -> AsyncIterator[Stack]:
    telemetry = {"otlp_endpoint": collector.endpoint, "otlp_protocol": protocol, "trace_ratio": 0.0}
    sections = {"telemetry": telemetry, "router": {"http": {"port": 0}}}
    pool = {**sim_pool(base_ms=4.0, max_num_seqs=4), "slo": {"batch": {"ttft_p99_s": 0.001}}}
    folder = tmp_path_factory.mktemp("stack")
    async with running_stack(folder, routers=2, replicas=2, pools={"demo": pool}, sections=sections) as running:
        yield running


async def root_of(collector: Collector, request_id: str) -> Span:
    """Wait for a request's trace, and return the span of its call."""

    def roots() -> list[Span]:
        return [span for span in collector.spans if attributes(span).get("gen_ai.response.id") == request_id]

    await until(lambda: bool(roots()))
    # Replicas and routers send at their own times.
    await until(lambda: bool(collector.named("llm_request", roots()[-1].trace_id.hex())))
    [root] = roots()
    return root


def seconds(span: Span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


async def test_a_request_has_one_trace_below_its_callers_span(stack: Stack, collector: Collector) -> None:
    began = time.monotonic()
    answer = await stack.inference().Generate(request(max_tokens=20, ignore_eos=True), metadata=SAMPLED, timeout=30)
    root = await root_of(collector, answer.request_id)
    whole_s = time.monotonic() - began
    receipt = answer.receipt
    [attempt] = [span for span in collector.children(root) if span.name == "attempt"]
    by_name = {span.name: span for span in (*collector.children(root), *collector.children(attempt))}

    assert root.trace_id.hex() == TRACE
    assert root.parent_span_id.hex() == CALLER
    assert root.trace_state == "vendor=1"
    assert root.kind == Span.SPAN_KIND_SERVER
    assert {"admission", "queue", "attempt", "prefill", "decode", "llm_request"} <= by_name.keys()
    # A call is over a moment after its receipt was written, on a busy machine a long one.
    assert duration_from_wire(receipt.total_time) - 0.001 <= seconds(root) <= whole_s + 0.001
    assert seconds(by_name["admission"]) == pytest.approx(duration_from_wire(receipt.admission_time), abs=0.001)
    ran = receipt.attempts[0]
    assert seconds(by_name["queue"]) == pytest.approx(duration_from_wire(ran.queue_time), abs=0.001)
    assert seconds(by_name["prefill"]) == pytest.approx(duration_from_wire(ran.prefill_time), abs=0.001)
    # The router's view, which is later than the replica's by what a busy machine takes to tell it.
    decode = by_name["decode"]
    assert by_name["prefill"].end_time_unix_nano == decode.start_time_unix_nano
    assert decode.end_time_unix_nano == attempt.end_time_unix_nano
    assert 0 < seconds(decode) <= seconds(root)
    engine = attributes(by_name["llm_request"])
    assert engine["gen_ai.latency.time_in_model_decode"] == pytest.approx(duration_from_wire(ran.decode_time))
    assert engine["gen_ai.usage.completion_tokens"] == 20
    for span in by_name.values():
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano + 50_000_000
    assert collector.services[root.span_id] == "penstock-router"
    assert collector.services[by_name["llm_request"].span_id] == "penstock-replica"


async def test_the_call_has_the_attributes_of_the_conventions_and_no_text(stack: Stack, collector: Collector) -> None:
    answer = await stack.inference().Generate(
        request("a secret question", max_tokens=5, ignore_eos=True), metadata=SAMPLED, timeout=30
    )
    root = await root_of(collector, answer.request_id)
    found = attributes(root)
    assert root.name == "text_completion demo"
    assert found["gen_ai.operation.name"] == "text_completion"
    assert found["gen_ai.request.model"] == "demo"
    assert found["gen_ai.usage.input_tokens"] == answer.usage.prompt_tokens
    assert found["gen_ai.usage.output_tokens"] == 5
    assert found["gen_ai.response.finish_reasons"] == ["length"]
    assert "secret" not in str(collector.spans)


async def test_a_span_has_so_much_text_as_was_asked_for(tmp_path: Path, collector: Collector, protocol: str) -> None:
    telemetry = {"otlp_endpoint": collector.endpoint, "otlp_protocol": protocol, "trace_text_characters": 12}
    async with running_stack(tmp_path, pools={"demo": sim_pool()}, sections={"telemetry": telemetry}) as stack:
        asked = request("a question that is long", max_tokens=9, ignore_eos=True)
        answer = await stack.inference().Generate(asked, metadata=SAMPLED, timeout=30)
        found = attributes(await root_of(collector, answer.request_id))
    [said] = json.loads(str(found["gen_ai.input.messages"]))
    assert said == {"role": "user", "parts": [{"type": "text", "content": "a question t…"}]}
    [made] = json.loads(str(found["gen_ai.output.messages"]))
    assert ("assistant", "length") == (made["role"], made["finish_reason"])
    text = answer.choices[0].text
    assert [{"type": "text", "content": text if len(text) <= 12 else f"{text[:12]}…"}] == made["parts"]


async def test_http_headers_are_followed_too(stack: Stack, collector: Collector) -> None:
    http = stack.routers[0].http
    assert http is not None
    async with httpx.AsyncClient() as client:
        reply = await client.post(
            f"http://127.0.0.1:{http.port}/v1/chat/completions",
            json={"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4},
            headers={"Traceparent": SAMPLED[0][1]},
        )
    root = await root_of(collector, reply.json()["id"].removeprefix("chatcmpl-"))
    assert root.parent_span_id.hex() == CALLER
    assert attributes(root)["penstock.origin"] == "openai"


async def test_what_is_not_sampled_is_not_exported_unless_it_misses_its_slo(stack: Stack, collector: Collector) -> None:
    fine = await stack.inference().Generate(request(max_tokens=2), metadata=NOT_SAMPLED, timeout=30)
    slow = request(max_tokens=2)
    slow.request_class = types.REQUEST_CLASS_BATCH
    missed = await stack.inference().Generate(slow, metadata=NOT_SAMPLED, timeout=30)

    def ids() -> set[Any]:
        return {attributes(span).get("gen_ai.response.id") for span in collector.spans}

    await until(lambda: missed.request_id in ids())
    assert fine.request_id not in ids()


async def test_an_attempt_links_to_the_one_that_it_goes_on_from(stack: Stack, collector: Collector) -> None:
    call = stack.inference().StreamGenerate(stream_request(max_tokens=400, ignore_eos=True), metadata=SAMPLED)
    while not (event := await call.read()).HasField("delta"):
        if event.HasField("started"):
            replica_id, request_id = event.started.replica_id, event.started.request_id
    number = next(index for index, each in enumerate(stack.replicas) if each.plan.replica_id == replica_id)
    await stack.kill_replica(number)
    await collect(call)
    root = await root_of(collector, request_id)
    lost, second = sorted(
        (span for span in collector.children(root) if span.name == "attempt"),
        key=lambda span: span.start_time_unix_nano,
    )
    assert lost.status.code == Status.STATUS_CODE_ERROR
    assert attributes(lost)["penstock.outcome"] == "lost"
    assert [link.span_id for link in second.links] == [lost.span_id]
    assert [span.name for span in collector.children(root)].count("hand_over") == 1
    await stack.add_replica()


async def test_a_resumed_call_links_to_its_first(stack: Stack, collector: Collector) -> None:
    body = stream_request(max_tokens=300, ignore_eos=True)
    body.generate.idempotency_key = "resumed"
    first = stack.inference(0).StreamGenerate(body, metadata=SAMPLED)
    while not (event := await first.read()).HasField("delta"):
        if event.HasField("started"):
            request_id = event.started.request_id
    other_trace = (("traceparent", f"00-{TRACE[1:] + 'a'}-{CALLER}-01"),)
    await collect(stack.inference(1).StreamGenerate(body, metadata=other_trace))
    first.cancel()

    def calls() -> list[Span]:
        return [span for span in collector.spans if attributes(span).get("gen_ai.response.id") == request_id]

    await until(lambda: len(calls()) == 2)
    last = max(calls(), key=lambda span: span.start_time_unix_nano)
    [link] = last.links
    assert link.trace_id.hex() == TRACE
    assert link.span_id in {span.span_id for span in collector.spans if span.name == "text_completion demo"}
    assert last.trace_id.hex() != TRACE


async def test_a_request_that_no_model_serves_has_one_span_if_it_is_sampled(stack: Stack, collector: Collector) -> None:
    for metadata in (SAMPLED, NOT_SAMPLED):
        with pytest.raises(grpc.aio.AioRpcError):
            await stack.inference().Generate(request(model="nope"), metadata=metadata, timeout=30)
    await until(lambda: bool(collector.named("text_completion nope")))
    [span] = collector.named("text_completion nope")
    assert attributes(span)["error.type"] == "MODEL_NOT_FOUND"
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert span.parent_span_id.hex() == CALLER


async def test_an_item_of_a_job_links_to_the_call_that_submitted_it(stack: Stack, collector: Collector) -> None:
    header = jobs_pb2.JobHeader(model="demo", trace_parent=f"00-{TRACE[::-1]}-{CALLER}-01")
    item = jobs_pb2.JobItem(custom_id="a", request=request(max_tokens=2))
    # A job's items have the class BATCH, whose SLO nothing meets here, so they are exported.
    parts = (
        jobs_pb2.SubmitJobRequest(header=header),
        jobs_pb2.SubmitJobRequest(items=jobs_pb2.JobItems(items=[item])),
    )
    await stack.jobs().SubmitJob(iter(parts), metadata=SAMPLED)

    def calls() -> list[Span]:
        return [span for span in collector.spans if attributes(span).get("penstock.origin") == "job"]

    await until(lambda: bool(calls()))
    [link] = calls()[0].links
    assert (link.trace_id.hex(), link.span_id.hex()) == (TRACE, CALLER)
    assert not calls()[0].parent_span_id
