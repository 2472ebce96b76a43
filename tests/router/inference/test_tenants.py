"""What belongs to a tenant stays with it: over two routers, on every kind of store."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from cluster.trust.resume_token import ResumeToken
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from tests.cluster.queue.servers import running
from tests.router.identity.test_calls import refusal
from tests.support.keys import Keys, bearer
from tests.support.stack import SECRET, Stack, collect, running_stack, sim_pool, stream_request
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = {"max_tokens": 20_000, "ignore_eos": True}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest.fixture(scope="module", params=["in-process", "redis-6.2", "redis-7.0", "redis-cluster"])
def redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The store's address; empty for Redis in process."""
    with contextlib.nullcontext() if request.param == "in-process" else running(request.param) as server:
        yield server.url if server is not None else ""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, keys: Keys, redis_url: str) -> AsyncIterator[Stack]:
    """One slot, so that a second request waits."""
    pools = {"demo": sim_pool(base_ms=2.0, max_num_seqs=1)}
    sections = {"auth": {"keys_file": str(keys.path)}, "redis": {"url": redis_url}}
    async with running_stack(tmp_path_factory.mktemp("stack"), routers=2, pools=pools, sections=sections) as running_:
        yield running_


async def begin(stack: Stack, key: str, client_key: str = "") -> tuple[Any, api.StreamGenerateResponse]:
    """Start an endless generation at the first router; returns the call and its `started` event."""
    body = stream_request(**LONG)
    body.generate.idempotency_key = client_key
    call = stack.inference(0).StreamGenerate(body, metadata=bearer(key))
    while not (event := await call.read()).HasField("started"):
        pass
    return call, event


async def cancel(stack: Stack, key: str, router: int, **target: str) -> Any:
    return await stack.inference(router).Cancel(api.CancelRequest(**target), metadata=bearer(key))


@pytest.mark.parametrize("router", [0, 1])
@pytest.mark.parametrize("state", ["running", "waiting"])
async def test_only_its_tenant_cancels_a_request(stack: Stack, keys: Keys, router: int, state: str) -> None:
    """By id or by key, where the other tenant uses the very same key; operators are another tenant too."""
    blocker = (await begin(stack, keys.other))[0] if state == "waiting" else None
    body = stream_request(**LONG)
    body.generate.idempotency_key = "the-key"
    call = stack.inference(0).StreamGenerate(body, metadata=bearer(keys.acme))
    event = await call.read()
    request_id = event.queued.request_id or event.started.request_id
    if state == "waiting":
        assert event.HasField("queued")

    for thief in (keys.other, keys.operator):
        for target in ({"request_id": request_id}, {"idempotency_key": "the-key"}):
            stolen = stack.inference(router).Cancel(api.CancelRequest(**target), metadata=bearer(thief))
            code, facts = await refusal(stolen)
            assert (grpc.StatusCode.NOT_FOUND, "REQUEST_NOT_FOUND") == (code, facts["reason"])
    # A second key of the same tenant is the same owner.
    reply = await cancel(stack, keys.acme_too, router, idempotency_key="the-key")
    assert request_id == reply.request_id
    ended = await collect(call)
    assert types.FINISH_REASON_CANCELLED == ended[-1].finished.choices[0].finish_reason
    if blocker is not None:
        blocker.cancel()
    await until(lambda: stack.replicas[0].table.sequences == 0)


async def test_the_same_client_key_of_two_tenants_names_two_requests(stack: Stack, keys: Keys) -> None:
    """Nobody attaches to, replaces or ends what another tenant named alike."""
    first, started = await begin(stack, keys.acme, "same")
    body = stream_request(**LONG)
    body.generate.idempotency_key = "same"
    second = stack.inference(1).StreamGenerate(body, metadata=bearer(keys.other))
    queued = (await second.read()).queued
    assert queued.request_id not in ("", started.started.request_id)

    assert queued.request_id == (await cancel(stack, keys.other, 0, idempotency_key="same")).request_id
    assert types.FINISH_REASON_CANCELLED == (await collect(second))[-1].finished.choices[0].finish_reason
    assert (await first.read()).HasField("delta")
    assert started.started.request_id == (await cancel(stack, keys.acme, 1, idempotency_key="same")).request_id
    await collect(first)
    await until(lambda: stack.replicas[0].table.sequences == 0)


@pytest.mark.parametrize("router", [0, 1])
async def test_a_stolen_resume_token_is_worth_nothing_to_another_tenant(stack: Stack, keys: Keys, router: int) -> None:
    call, started = await begin(stack, keys.acme)
    token = started.started.resume_token
    body = stream_request(**LONG)
    body.resume.CopyFrom(api.Resume(resume_token=token, received_tokens=[0]))
    for thief in (keys.other, keys.operator):
        code, facts = await refusal(stack.inference(router).StreamGenerate(body, metadata=bearer(thief)))
        assert (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST") == (code, facts["reason"])
    # The owner lost nothing: the stream still runs, and the owner's other key may take it over.
    first = await call.read()
    taken = stack.inference(0).StreamGenerate(body, metadata=bearer(keys.acme_too))
    while not (event := await taken.read()).HasField("delta"):
        pass
    assert (True, 0) == (first.HasField("delta"), event.delta.offset)
    taken.cancel()
    call.cancel()
    await until(lambda: stack.replicas[0].table.sequences == 0)


async def test_a_token_with_another_tenant_written_into_it_is_no_token(stack: Stack, keys: Keys) -> None:
    call, started = await begin(stack, keys.acme)
    sealed = started.started.resume_token
    assert "acme" == ResumeToken.open(sealed, SECRET).tenant
    body = stream_request(**LONG)
    forged = sealed.replace(b"\xa4acme", b"\xa5other")
    assert forged != sealed
    body.resume.CopyFrom(api.Resume(resume_token=forged, received_tokens=[0]))
    code, _ = await refusal(stack.inference(1).StreamGenerate(body, metadata=bearer(keys.other)))

    assert grpc.StatusCode.INVALID_ARGUMENT is code
    call.cancel()
    await until(lambda: stack.replicas[0].table.sequences == 0)
