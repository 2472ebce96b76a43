"""Records of requests: from calls to Explain and ListRequests, with tenants that see their own only."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from penstock.v1 import admin_pb2, records_pb2
from penstock.v1 import types_pb2 as types
from penstock.wire import duration_from_wire
from tests.support.keys import Keys, bearer
from tests.support.stack import Stack, collect, request, running_stack, sim_pool, stream_request
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
TTFT_S = 0.2


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> AsyncIterator[Stack]:
    slo = {"standard": {"ttft_p99_s": TTFT_S}}
    pool = {**sim_pool(base_ms=4.0, max_num_seqs=2), "slo": slo}
    sections = {"auth": {"keys_file": str(keys.path)}}
    folder = tmp_path_factory.mktemp("stack")
    async with running_stack(folder, routers=2, replicas=2, pools={"demo": pool}, sections=sections) as running:
        yield running


async def explained(stack: Stack, key: str, request_id: str, router: int = 0) -> admin_pb2.ExplainResponse:
    """Explain a request, as soon as its record is there."""
    await until(lambda: has_calls(stack, key, request_id, 1))
    return await explain(stack, key, request_id, router)


async def explain(stack: Stack, key: str, request_id: str, router: int = 0) -> admin_pb2.ExplainResponse:
    asked = admin_pb2.ExplainRequest(request_id=request_id)
    found: admin_pb2.ExplainResponse = await stack.admin(router).Explain(asked, metadata=bearer(key))
    return found


async def has_calls(stack: Stack, key: str, request_id: str, count: int) -> bool:
    with contextlib.suppress(grpc.aio.AioRpcError):
        return len((await explain(stack, key, request_id)).calls) >= count
    return False


def seconds(parts: Any) -> dict[str, float]:
    return {part.name: duration_from_wire(part.time) for part in parts}


async def test_a_request_is_explained_at_any_router_as_its_receipt_says(stack: Stack, keys: Keys) -> None:
    began = time.monotonic()
    answer = await stack.inference(0).Generate(
        request(max_tokens=20, ignore_eos=True), metadata=bearer(keys.acme), timeout=30
    )
    found = await explained(stack, keys.acme, answer.request_id, router=1)
    whole_s = time.monotonic() - began
    [call] = found.calls
    [choice] = call.choices
    [attempt] = choice.attempts
    receipt = answer.receipt

    assert (call.tenant, call.pool, call.origin) == ("acme", "demo", "grpc")
    assert call.router_id == receipt.router_id
    assert call.usage == answer.usage
    assert call.gpu_seconds == receipt.gpu_seconds
    assert attempt.replica_id == receipt.attempts[0].replica_id
    assert attempt.outcome == records_pb2.ATTEMPT_OUTCOME_COMPLETED
    assert choice.finish_reason == types.FINISH_REASON_LENGTH
    assert attempt.load_at_grant.batch_limit == 2
    ttft_s = duration_from_wire(receipt.time_to_first_token)
    assert duration_from_wire(attempt.first_token_at) == pytest.approx(ttft_s, abs=0.001)
    # A call is over a moment after its receipt was written, on a busy machine a long one.
    assert duration_from_wire(receipt.total_time) <= duration_from_wire(call.total_time) <= whole_s
    parts = seconds(found.parts)
    assert sum(parts.values()) == pytest.approx(duration_from_wire(call.total_time), abs=0.005)
    assert parts["prefill"] == pytest.approx(duration_from_wire(receipt.attempts[0].prefill_time), abs=0.001)


async def test_ids_of_http_apis_are_understood(stack: Stack, keys: Keys) -> None:
    answer = await stack.inference(0).Generate(request(max_tokens=2), metadata=bearer(keys.acme), timeout=30)
    await explained(stack, keys.acme, answer.request_id)
    found = await explained(stack, keys.acme, f"chatcmpl-{answer.request_id}")
    assert found.calls[0].request_id == answer.request_id


async def test_a_request_that_waited_says_how_long_and_missed_its_slo(stack: Stack, keys: Keys) -> None:
    bodies = [stream_request(max_tokens=100, ignore_eos=True) for _ in range(12)]
    calls = [collect(stack.inference().StreamGenerate(body, metadata=bearer(keys.other))) for body in bodies]
    # The last to end has waited for others, however long the first token of one that did not has taken.
    *_, last = [(await events)[-1].finished for events in asyncio.as_completed(calls)]
    found = await explained(stack, keys.other, last.request_id)
    call = found.calls[0]

    assert call.slo.outcome == "ttft"
    assert duration_from_wire(call.slo.ttft) == TTFT_S
    assert seconds(found.parts)["queue"] == pytest.approx(
        duration_from_wire(last.receipt.attempts[0].queue_time), abs=0.001
    )
    assert call.choices[0].position > 0
    asked = admin_pb2.ListRequestsRequest(missed=True)
    listed = await stack.admin().ListRequests(asked, metadata=bearer(keys.other))
    assert last.request_id in {record.request_id for record in listed.requests}
    assert all(record.slo.outcome != "met" for record in listed.requests)


async def test_a_cancelled_request_has_its_attempt_and_no_verdict(stack: Stack, keys: Keys) -> None:
    call = stack.inference().StreamGenerate(stream_request(max_tokens=5_000), metadata=bearer(keys.acme))
    while not (event := await call.read()).HasField("delta"):
        if event.HasField("started"):
            request_id = event.started.request_id
    call.cancel()
    found = await explained(stack, keys.acme, request_id)
    [attempt] = found.calls[0].choices[0].attempts
    assert attempt.outcome == records_pb2.ATTEMPT_OUTCOME_CANCELLED
    assert attempt.gpu_seconds > 0
    assert found.calls[0].slo.outcome == ""


async def test_every_call_of_a_request_that_moved_to_another_router_is_there(stack: Stack, keys: Keys) -> None:
    body = stream_request(max_tokens=300, ignore_eos=True)
    body.generate.idempotency_key = "moved"
    first = stack.inference(0).StreamGenerate(body, metadata=bearer(keys.acme))
    while not (event := await first.read()).HasField("delta"):
        if event.HasField("started"):
            request_id = event.started.request_id
    await collect(stack.inference(1).StreamGenerate(body, metadata=bearer(keys.acme)))
    first.cancel()

    await until(lambda: has_calls(stack, keys.acme, request_id, 2))
    calls = (await explained(stack, keys.acme, request_id)).calls
    assert [call.resumed for call in calls] == [False, True]
    assert calls[0].choices[0].attempts[-1].outcome == records_pb2.ATTEMPT_OUTCOME_TAKEN_OVER
    assert calls[1].choices[0].attempts[-1].outcome == records_pb2.ATTEMPT_OUTCOME_COMPLETED
    assert {call.router_id for call in calls} == {router.router_id for router in stack.routers}


async def test_a_tenant_sees_its_own_requests_only(stack: Stack, keys: Keys) -> None:
    answer = await stack.inference().Generate(request(max_tokens=2), metadata=bearer(keys.acme), timeout=30)
    await explained(stack, keys.operator, answer.request_id)
    for asked, code in (
        (stack.admin().Explain(admin_pb2.ExplainRequest(request_id=answer.request_id), metadata=bearer(keys.other)), 5),
        (stack.admin().ListRequests(admin_pb2.ListRequestsRequest(tenant="acme"), metadata=bearer(keys.other)), 7),
        (stack.admin().ListRequests(admin_pb2.ListRequestsRequest(all_tenants=True), metadata=bearer(keys.other)), 7),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asked
        assert caught.value.code().value[0] == code
    own = await stack.admin().ListRequests(admin_pb2.ListRequestsRequest(), metadata=bearer(keys.other))
    assert {record.tenant for record in own.requests} <= {"other"}
    every = await stack.admin().ListRequests(
        admin_pb2.ListRequestsRequest(all_tenants=True, limit=1000), metadata=bearer(keys.operator)
    )
    assert {record.tenant for record in every.requests} >= {"acme"}
    arrivals = [record.arrived_at_ms for record in every.requests]
    assert arrivals == sorted(arrivals, reverse=True)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (admin_pb2.ListRequestsRequest(limit=1001), "limit"),
        (admin_pb2.ListRequestsRequest(pool="nope"), "pool"),
    ],
)
async def test_bad_requests_name_their_field(stack: Stack, keys: Keys, asked: Any, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=field) as caught:
        await stack.admin().ListRequests(asked, metadata=bearer(keys.operator))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_id_is_required_and_an_unknown_one_is_named(stack: Stack, keys: Keys) -> None:
    for request_id, code in (("", grpc.StatusCode.INVALID_ARGUMENT), ("nothing", grpc.StatusCode.NOT_FOUND)):
        with pytest.raises(grpc.aio.AioRpcError, match=request_id or "request_id") as caught:
            await explain(stack, keys.acme, request_id)
        assert caught.value.code() is code


async def test_a_router_that_stops_leaves_no_record_behind(stack: Stack, keys: Keys) -> None:
    router = await stack.add_router()
    answer = await stack.inference(2).Generate(request(max_tokens=2), metadata=bearer(keys.acme), timeout=30)
    await router.stop()
    stack.routers.remove(router)
    found = await stack.admin().Explain(
        admin_pb2.ExplainRequest(request_id=answer.request_id), metadata=bearer(keys.acme)
    )
    assert found.calls[0].router_id == router.router_id
