"""What a router counts: every call by its status, and everything that the ledger has, whoever still listened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from cluster.errors import GenerationFailedError, PenstockError, QueueUnavailableError
from cluster.queue.entries import Settlement
from cluster.telemetry.tenant_labels import MAX_TENANTS, OTHER_TENANTS
from penstock.client import AsyncClient, JobItem, Sampling
from penstock.models import RequestClass
from penstock.v1 import admin_pb2
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.generation.choice import Choice
from router.handlers import service_handler
from router.metrics import RouterMetrics
from tests.router.inference.test_preemption import QUICK, of_class
from tests.support.stack import Stack, collect, first_tokens, ids_of, request, running_stack, sim_pool, stream_request
from tests.support.waiting import until

CLASS = {"class": "standard"}
METHOD = "InferenceService/StreamGenerate"


@pytest_asyncio.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path, sim={"base_ms": 5.0, "max_num_seqs": 1}, queue=QUICK) as running:
        yield running


def value(stack: Stack, name: str, **labels: str) -> float:
    return stack.routers[0]._metrics.registry.get_sample_value(f"penstock_router_{name}", labels) or 0.0


def tokens(stack: Stack, kind: str) -> float:
    return value(stack, "tokens_total", pool="demo", kind=kind)


def ended(stack: Stack, reason: str) -> float:
    return value(stack, "choices_total", pool="demo", reason=reason)


def waits(stack: Stack, histogram: str, request_class: str = "standard") -> float:
    return value(stack, f"{histogram}_seconds_count", pool="demo", **{"class": request_class})


async def ledger(stack: Stack) -> admin_pb2.UsageLine:
    lines = (await stack.admin().GetUsage(admin_pb2.GetUsageRequest())).lines
    return lines[0] if lines else admin_pb2.UsageLine()


async def charged(stack: Stack, requests: int) -> admin_pb2.UsageLine:
    """Wait until the ledger has so many requests."""

    async def there() -> bool:
        return (await ledger(stack)).requests == requests

    await until(there)
    return await ledger(stack)


# --- calls ------------------------------------------------------------------------------------------------------------


class Failing:
    """A service whose one stream fails."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        async def behave(*_: Any) -> None:
            raise self._error

        return behave


class Context:
    """A call that takes its status."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def abort_with_status(self, status: grpc.Status) -> None:
        raise grpc.aio.AbortError(str(status.code))


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (RuntimeError("a bug"), "INTERNAL", "INTERNAL"),
        (QueueUnavailableError("Redis is away", 1.0), "UNAVAILABLE", "QUEUE_UNAVAILABLE"),
        (GenerationFailedError("r", 3), "ABORTED", "GENERATION_FAILED"),
        (PenstockError("what nobody named"), "INTERNAL", "INTERNAL"),
        (asyncio.CancelledError(), "CANCELLED", "CANCELLED"),
        # What a write gets that waited for a client which then left.
        (grpc.aio.InternalError("the call has ended"), "CANCELLED", "CANCELLED"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_a_failed_call_is_counted_by_the_status_that_its_client_sees(
    error: BaseException, code: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = RouterMetrics()
    service = api.DESCRIPTOR.services_by_name["InferenceService"]
    handlers = service_handler(service, Failing(error), metrics, lambda _context: SimpleNamespace(role=9))  # type: ignore[arg-type,return-value]
    details = SimpleNamespace(method=f"/penstock.v1.{METHOD}", invocation_metadata=())
    handler = handlers.service(details)  # type: ignore[arg-type]
    assert handler is not None
    with pytest.raises((grpc.aio.AbortError, asyncio.CancelledError)):
        await handler.unary_stream(api.StreamGenerateRequest(), Context())  # type: ignore[misc]

    count = metrics.registry.get_sample_value
    assert 1 == count("penstock_router_calls_total", {"method": METHOD, "code": code})
    assert 1 == count("penstock_router_errors_total", {"method": METHOD, "reason": reason})
    # One incident has one id, and is logged once.
    incidents = [each for each in caplog.records if each.message == "router.incident"]
    assert len(incidents) == (code == "INTERNAL")


async def test_calls_count_by_the_name_of_their_status(stack: Stack) -> None:
    await collect(stack.inference().StreamGenerate(stream_request(max_tokens=2)))
    with pytest.raises(grpc.aio.AioRpcError):
        await stack.inference().StreamGenerate(stream_request(temperature=9.0)).read()
    left = stack.inference().StreamGenerate(stream_request(max_tokens=5000, ignore_eos=True))
    await left.read()
    left.cancel()
    await until(lambda: 1 == value(stack, "calls_total", method=METHOD, code="CANCELLED"))

    assert 1 == value(stack, "calls_total", method=METHOD, code="OK")
    assert 1 == value(stack, "calls_total", method=METHOD, code="INVALID_ARGUMENT")
    assert 0 == value(stack, "calls_total", method=METHOD, code="ERROR")


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_requests_count_by_class_and_end(stack: Stack) -> None:
    asked = request(max_tokens=7, ignore_eos=True)
    asked.request_class = types.REQUEST_CLASS_INTERACTIVE
    end = await stack.inference().Generate(asked)

    assert 1 == ended(stack, "length")
    assert (end.usage.prompt_tokens, 7) == (tokens(stack, "prompt"), tokens(stack, "output"))
    for histogram in ("queue", "ttft", "inter_token", "request"):
        assert (1, 0) == (waits(stack, histogram, "interactive"), waits(stack, histogram))


async def test_who_leaves_counts_with_all_that_was_made_for_it(stack: Stack) -> None:
    """One leaves in the middle of its output, one in line."""
    running = stack.inference().StreamGenerate(stream_request(max_tokens=5000, ignore_eos=True))
    while not (await running.read()).HasField("delta"):
        pass
    waiting = stack.inference().StreamGenerate(stream_request(max_tokens=5))
    assert (await waiting.read()).HasField("queued")
    waiting.cancel()
    await until(lambda: 1 == ended(stack, "cancelled"))
    running.cancel()
    line = await charged(stack, 1)

    assert 2 == ended(stack, "cancelled")
    assert line.output_tokens > 0
    assert (line.prompt_tokens, line.output_tokens) == (tokens(stack, "prompt"), tokens(stack, "output"))
    mine = value(stack, "tenant_tokens_total", pool="demo", tenant="anonymous")
    assert line.prompt_tokens + line.output_tokens == mine
    # Who left in line had neither slot nor token; neither ended as asked.
    await until(lambda: 1 == waits(stack, "ttft"))
    assert (1, 0) == (waits(stack, "queue"), waits(stack, "request"))


async def test_who_gives_way_and_leaves_in_line_counts_once(stack: Stack) -> None:
    batch = stack.inference().StreamGenerate(of_class(types.REQUEST_CLASS_BATCH, 5000))
    while not (await batch.read()).HasField("delta"):
        pass
    chat = stack.inference().StreamGenerate(of_class(types.REQUEST_CLASS_INTERACTIVE, 3000))
    while not (await chat.read()).HasField("delta"):
        pass
    assert 0 == tokens(stack, "output")
    batch.cancel()
    line = await charged(stack, 1)
    assert line.output_tokens == tokens(stack, "output") > 0
    chat.cancel()
    line = await charged(stack, 2)

    assert (line.prompt_tokens, line.output_tokens) == (tokens(stack, "prompt"), tokens(stack, "output"))
    assert 2 == ended(stack, "cancelled")
    assert (1, 1) == (waits(stack, "queue", "batch"), waits(stack, "queue", "interactive"))


async def test_who_takes_a_stream_over_counts_it_and_its_first_router_does_not(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 5.0}) as stack:
        first = stack.inference(0).StreamGenerate(stream_request(max_tokens=300, ignore_eos=True))
        begun = await first_tokens(first, 1)
        again = stream_request(max_tokens=300, ignore_eos=True)
        again.resume.resume_token = next(event.started.resume_token for event in begun if event.HasField("started"))
        again.resume.received_tokens.append(len(ids_of(begun)))
        end = (await collect(stack.inference(1).StreamGenerate(again)))[-1].finished
        counts = [router._metrics.registry for router in stack.routers]
        output = {"pool": "demo", "kind": "output"}
        labels = {"pool": "demo", **CLASS}

        assert 300 == end.usage.output_tokens
        # A client has its end a moment before the router counts it.
        await until(lambda: counts[1].get_sample_value("penstock_router_tokens_total", output) is not None)
        assert [None, 300] == [each.get_sample_value("penstock_router_tokens_total", output) for each in counts]
        await until(lambda: counts[0].get_sample_value("penstock_router_ttft_seconds_count", labels) == 1)
        assert counts[1].get_sample_value("penstock_router_ttft_seconds_count", labels) is None


async def test_an_item_of_a_job_counts_as_its_class(stack: Stack) -> None:
    async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as client:
        job = await client.submit_job("demo", [JobItem("a", "What is Penstock?", Sampling(max_tokens=4))])
        async for _ in client.watch_job(job.job_id):
            pass
    line = await charged(stack, 1)

    assert (line.prompt_tokens, line.output_tokens) == (tokens(stack, "prompt"), tokens(stack, "output"))
    for histogram in ("queue", "ttft", "request"):
        assert (1, 0) == (waits(stack, histogram, "batch"), waits(stack, histogram))


async def test_who_is_refused_is_no_choice_that_ended(stack: Stack) -> None:
    """Also one that was in line for as long as it took to see that it would wait for too long."""
    crowd = [asyncio.ensure_future(stack.inference().Generate(request(max_tokens=50))) for _ in range(30)]
    estimate = stack.routers[0].pools["demo"].admission.estimate
    await until(lambda: (estimate.wait_s(RequestClass.STANDARD, 20) or 0) > 0.5 and any(one.done() for one in crowd))
    hasty = request(max_tokens=50, n=3, temperature=1.0)
    hasty.queue_timeout.CopyFrom(Duration(nanos=100_000_000))
    with pytest.raises(grpc.aio.AioRpcError, match="queue_timeout"):
        await stack.inference().Generate(hasty)
    await asyncio.gather(*crowd)

    assert 1 == value(stack, "errors_total", method="InferenceService/Generate", reason="NOT_IN_TIME")
    assert (0, len(crowd)) == (ended(stack, "cancelled"), ended(stack, "length") + ended(stack, "stop"))


def without_end(tenant: str) -> Choice:
    entry = SimpleNamespace(tenant=tenant, request_class=RequestClass.STANDARD)
    metering, wait = SimpleNamespace(attempts=()), SimpleNamespace(predicted_s=None)
    return SimpleNamespace(entry=entry, metering=metering, wait=wait, end=None)  # type: ignore[return-value]


def test_who_was_taken_over_and_cannot_go_on_failed() -> None:
    metrics = RouterMetrics()
    metrics.settled("p", without_end("t"), None)
    count = metrics.registry.get_sample_value

    assert 1 == count("penstock_router_choices_total", {"pool": "p", "reason": "error"})
    assert count("penstock_router_tokens_total", {"pool": "p", "kind": "output"}) is None


def test_tenants_beyond_the_first_share_a_series() -> None:
    metrics = RouterMetrics()
    for number in range(MAX_TENANTS + 2):
        metrics.settled("p", without_end(f"t{number}"), Settlement(4, prompt_tokens=3))

    def used(tenant: str) -> float | None:
        return metrics.registry.get_sample_value("penstock_router_tenant_tokens_total", {"pool": "p", "tenant": tenant})

    assert (7.0, 14.0, None) == (used("t0"), used(OTHER_TENANTS), used(f"t{MAX_TENANTS}"))


# --- files and the loop -----------------------------------------------------------------------------------------------


def test_a_routers_first_bad_file_is_an_increase() -> None:
    """Prometheus sees none in a series that begins with 1."""
    metrics = RouterMetrics()
    for file in ("auth.keys_file", "router.tls", "replica.tls", "cluster.secret_file"):
        facts = {"file": file, "outcome": "bad"}
        assert 0 == metrics.registry.get_sample_value("penstock_router_file_reloads_total", facts)
        metrics.reloaded(file, good=False)
        assert 1 == metrics.registry.get_sample_value("penstock_router_file_reloads_total", facts)


async def test_the_time_in_which_the_loop_stood_still_is_exported(stack: Stack) -> None:
    keeper = stack.routers[0].pools["demo"]._membership._keeper
    keeper.stalled_s += 7.0

    assert keeper.stalled_s == value(stack, "loop_stalled_seconds_total") >= 7.0


async def test_the_time_in_which_the_loop_stood_still_goes_on_where_pools_come_and_go(tmp_path: Path) -> None:
    """Prometheus takes a value below the last one for the increase of a new process, and the alert would fire."""
    async with running_stack(tmp_path, replicas=0, pools={"demo": sim_pool(), "other": sim_pool()}) as stack:
        pools = stack.routers[0].pools
        demo, other = pools["demo"], pools["other"]

        def stalled() -> float:
            return value(stack, "loop_stalled_seconds_total")

        # No beat may add to the time meanwhile.
        for pool in (demo, other):
            await pool._membership.stop()
        ours, theirs = demo._membership._keeper, other._membership._keeper
        ours.stalled_s, theirs.stalled_s = 600.0, 300.0
        assert 600.0 == stalled()
        pools.drop("demo")
        assert 600.0 == stalled()
        theirs.stalled_s += 1.0
        assert 601.0 == stalled()
        # A new one has measured less, and measures the same loop from now on.
        ours.stalled_s = 2.0
        pools.put("demo", demo)
        assert 601.0 == stalled()
        ours.stalled_s, theirs.stalled_s = 5.0, 304.0
        assert 604.0 == stalled()
        pools.drop("demo")
        pools.drop("other")
        assert 604.0 == stalled()
        pools.put("other", other)
        pools.put("demo", demo)
        assert 604.0 == stalled()
