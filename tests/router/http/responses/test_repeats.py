"""Calls under one idempotency key that come at the same time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.errors import QueueUnavailableError, ShuttingDownError, TakenOverError
from cluster.responses.contract import ResponseClaim, ResponseName, ResponseRecord
from router.http.responses.routes import _id_under
from router.http.responses.stored import StoredRequest
from router.identity import ANONYMOUS
from router.inference.servicer import InferenceServicer
from tests.router.http.responses.conftest import call, sdk
from tests.support.stack import Stack
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK: dict[str, Any] = {
    "model": "demo",
    "input": "What is Penstock?",
    "max_output_tokens": 40,
    "extra_body": {"ignore_eos": True},
}
CALLS = 2


@pytest.fixture
def together(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls look for their response before any of them stores one."""
    http = stack.routers[0].http
    assert http is not None
    store = http._runs.store
    get, looked, left = store.get, asyncio.Barrier(CALLS), CALLS

    async def look(name: ResponseName) -> ResponseRecord | None:
        nonlocal left
        found, left = await get(name), left - 1
        if left >= 0:
            await looked.wait()
        return found

    monkeypatch.setattr(store, "get", look)


@pytest.mark.usefixtures("together")
async def test_two_streams_at_once_tell_the_same_response(stack: Stack) -> None:
    async with sdk(stack) as client:

        async def events() -> list[Any]:
            headers = {"Idempotency-Key": "streams"}
            return [each async for each in await client.responses.create(**ASK, stream=True, extra_headers=headers)]

        found = await asyncio.gather(*(events() for _ in range(CALLS)), return_exceptions=True)
        told = [each[-1].response for each in found if not isinstance(each, BaseException) and each[-1].type != "error"]
        # The newer of two may have taken the output from the older one, which is told so.
        assert told
        kept = await client.responses.retrieve(told[0].id)
        assert {each.output_text for each in (kept, *told)} == {told[0].output_text}
        assert kept.status == "incomplete"


@pytest.mark.usefixtures("together")
async def test_another_request_under_the_key_of_a_new_response_does_it_no_harm(stack: Stack) -> None:
    def body(text: str) -> dict[str, Any]:
        return {"model": "demo", "input": text, "max_output_tokens": 40, "ignore_eos": True, "background": True}

    headers = {"Idempotency-Key": "others"}
    answers = await asyncio.gather(
        *(call(stack, "POST", "/v1/responses", json=body(f"Question {n}?"), headers=headers) for n in range(CALLS))
    )
    assert sorted(status for status, _, _ in answers) == [200, 409]
    refused = next(found for status, found, _ in answers if status == 409)
    assert refused["error"]["code"] == "idempotency_key_reused"
    answered = next(found for status, found, _ in answers if status == 200)
    async with sdk(stack) as client:
        stream = await client.responses.retrieve(answered["id"], stream=True)
        assert [each async for each in stream][-1].type == "response.incomplete"


async def test_a_stream_that_was_taken_over_before_it_began_leaves_the_response_to_the_other_call(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def taken_over(*_: object) -> None:
        raise TakenOverError("other")

    keyed: dict[str, Any] = {"json": {"model": "demo", "input": "Hi", "stream": True}}
    keyed["headers"] = {"Idempotency-Key": "taken"}
    with monkeypatch.context() as patch:
        patch.setattr(InferenceServicer, "StreamGenerate", taken_over)
        assert (await call(stack, "POST", "/v1/responses", **keyed))[0] == 409
    response_id = _id_under(ANONYMOUS.tenant, "taken")
    assert (await call(stack, "GET", f"/v1/responses/{response_id}"))[0] == 200


async def test_what_a_refusal_left_is_not_deleted_once_a_repeat_has_its_id(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = stack.routers[0].http
    assert http is not None
    store = http._runs.store
    delete, repeated, answers = store.delete, asyncio.Event(), list[bool]()

    async def without_first_answer(name: ResponseName, **claim: Any) -> bool:
        if answers:
            await repeated.wait()
        answers.append(await delete(name, **claim))
        if len(answers) == 1:
            raise QueueUnavailableError("no answer")
        return answers[-1]

    async def refuses(*_: object) -> None:
        raise ShuttingDownError("this router is shutting down", 0.1)

    monkeypatch.setattr(store, "delete", without_first_answer)
    keyed: dict[str, Any] = {"json": {"model": "demo", "input": "Hi", "background": True, "max_output_tokens": 9}}
    keyed["headers"] = {"Idempotency-Key": "refused"}
    with monkeypatch.context() as patch:
        patch.setattr(InferenceServicer, "StreamGenerate", refuses)
        refused = {**keyed, "json": {**keyed["json"], "background": False, "stream": True}}
        assert (await call(stack, "POST", "/v1/responses", **refused))[0] == 503
    status, found, _ = await call(stack, "POST", "/v1/responses", **keyed)
    assert status == 200, found
    repeated.set()
    await until(lambda: len(answers) == 2)
    assert (await call(stack, "GET", f"/v1/responses/{found['id']}"))[0] == 200


@pytest.mark.parametrize("how", ["background", "stream"])
async def test_a_response_whose_client_heard_that_redis_does_not_answer_is_not_kept(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its client sends it again, and has two otherwise."""
    http = stack.routers[0].http
    assert http is not None
    store, names = http._runs.store, list[ResponseName]()
    create = store.create

    async def without_answer(claim: ResponseClaim, request: bytes, *, leased: bool) -> bool:
        names.append(claim.name)
        await create(claim, request, leased=leased)
        raise QueueUnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(store, "create", without_answer)
        status, found, headers = await call(
            stack, "POST", "/v1/responses", json={"model": "demo", "input": "Hi", how: True}
        )
    assert (status, found["error"]["code"], headers["x-should-retry"]) == (503, "queue_unavailable", "true")
    assert await store.get(names[0]) is None


async def test_what_an_outage_leaves_is_deleted_by_one_task(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request of an outage leaves something, as its answer alone may be lost."""
    http = stack.routers[0].http
    assert http is not None
    runs, tried, deleted, away = http._runs, list[str](), set[str](), True

    async def create(*_: object, **__: object) -> bool:
        raise QueueUnavailableError("away")

    async def delete(name: ResponseName, **_: object) -> bool:
        tried.append(name.response_id)
        if away:
            raise QueueUnavailableError("away")
        deleted.add(name.response_id)
        return True

    monkeypatch.setattr(runs.store, "create", create)
    monkeypatch.setattr(runs.store, "delete", delete)
    monkeypatch.setattr("router.http.responses.runs._RETRY_S", 0.01)
    claims = [ResponseClaim(ResponseName(ANONYMOUS.tenant, f"resp_{number}"), "t") for number in range(20)]
    for claim in claims:
        with pytest.raises(QueueUnavailableError):
            await runs.begin(claim, StoredRequest(b"", {}, (), "", ""), leased=False)
    assert 1 == sum(task.get_name() == "responses.forget" for task in asyncio.all_tasks())
    await until(lambda: bool(tried))
    away = False
    await until(lambda: deleted == {claim.name.response_id for claim in claims})


async def test_a_repeat_of_an_answer_that_is_not_stored_to_its_end_is_answered_and_stored(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = stack.routers[0].http
    assert http is not None
    store = http._runs.store

    async def away(*_: object, **__: object) -> bool:
        raise QueueUnavailableError("away")

    async def later(*_: object) -> None:
        pass

    keyed: dict[str, Any] = {"json": {"model": "demo", "input": "Hi", "max_output_tokens": 9, "ignore_eos": True}}
    keyed["headers"] = {"Idempotency-Key": "half"}
    with monkeypatch.context() as patch:
        patch.setattr(store, "finish", away)
        # As if this router ended before Redis is back.
        patch.setattr(http._runs, "_finish_later", later)
        status, first, _ = await call(stack, "POST", "/v1/responses", **keyed)
        assert (status, first["store"]) == (200, False)
    status, again, _ = await call(stack, "POST", "/v1/responses", **keyed)
    assert (status, again["store"], again["output"][0]["content"]) == (200, True, first["output"][0]["content"])
    kept = (await call(stack, "GET", f"/v1/responses/{again['id']}"))[1]
    assert kept["output"] == again["output"]
