"""The Responses API: OpenAI's own SDK against a real router, with simulated engines."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from cluster.errors import QueueUnavailableError
from cluster.responses.contract import ResponseName
from tests.router.http.responses.conftest import call
from tests.support.stack import Stack
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK: dict[str, Any] = {"model": "demo", "input": "What is Penstock?", "temperature": 0}
STORED = ("completed", "incomplete")


async def test_a_question_is_answered_and_kept(client: openai.AsyncOpenAI) -> None:
    found = await client.responses.create(**ASK, max_output_tokens=9, instructions="Be brief.", metadata={"a": "b"})
    assert (found.object, found.status, found.metadata) == ("response", "incomplete", {"a": "b"})
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    assert found.output_text
    assert found.usage is not None
    assert found.usage.output_tokens == 9
    assert found.usage.total_tokens == found.usage.input_tokens + 9
    assert await client.responses.retrieve(found.id) == found
    await client.responses.delete(found.id)
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.retrieve(found.id)
    assert caught.value.code == "response_not_found"


async def test_the_tokens_of_an_input_are_counted_as_a_response_counts_them(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(**ASK, max_output_tokens=4)
    for more in ({}, {"instructions": "Be brief."}, {"previous_response_id": first.id}):
        asked: dict[str, Any] = {"model": ASK["model"], "input": ASK["input"], **more}
        found = await client.responses.create(**asked, max_output_tokens=1, store=False)
        assert found.usage is not None
        counted = await client.responses.input_tokens.count(**asked)
        assert (counted.object, counted.input_tokens) == ("response.input_tokens", found.usage.input_tokens)


async def test_a_count_names_what_is_wrong(client: openai.AsyncOpenAI) -> None:
    for wrong, named in (
        ({"input": []}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"previous_response_id": "resp_" + "0" * 32}, "previous_response_id"),
        ({"model": "nobody"}, None),
    ):
        with pytest.raises(openai.APIStatusError) as caught:
            await client.responses.input_tokens.count(**{"model": "demo", "input": "hi", **wrong})  # type: ignore[arg-type]
        assert caught.value.status_code in (400, 404)
        assert caught.value.param == named


async def test_a_stream_says_what_the_whole_answer_says(client: openai.AsyncOpenAI) -> None:
    whole = await client.responses.create(**ASK, max_output_tokens=20)
    events = [event async for event in await client.responses.create(**ASK, max_output_tokens=20, stream=True)]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text
    assert last.response.usage == whole.usage
    assert [events[0].type, events[1].type] == ["response.created", "response.in_progress"]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert await client.responses.retrieve(last.response.id) == last.response
    again = [event async for event in await client.responses.retrieve(last.response.id, stream=True)]
    assert again[-1] == last
    assert [e.sequence_number for e in again if "delta" not in e.type] == [
        e.sequence_number for e in events if "delta" not in e.type
    ]


async def test_the_sdks_own_stream_collects_the_answer(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(**ASK) as stream:
        async for event in stream:
            if event.type == "response.output_text.done":
                said = event.text
        found = await stream.get_final_response()
    assert found.status == "completed"
    assert found.output_text == said


async def test_nothing_is_kept_unless_it_may_be(client: openai.AsyncOpenAI) -> None:
    found = await client.responses.create(**ASK, max_output_tokens=3, store=False)
    streamed = await client.responses.create(**ASK, max_output_tokens=3, store=False, stream=True)
    last = [event async for event in streamed][-1]
    assert last.type == "response.incomplete"
    for response_id in (found.id, last.response.id):
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response_id)


async def test_a_conversation_goes_on_from_a_stored_response(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(**ASK, max_output_tokens=8)
    more: dict[str, Any] = {**ASK, "input": "And then?", "max_output_tokens": 4}
    second = await client.responses.create(**more, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    by_hand: list[Any] = [
        {"role": "user", "content": ASK["input"]},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And then?"},
    ]
    same = await client.responses.create(**{**more, "input": by_hand})
    assert second.usage is not None
    assert same.usage is not None
    assert (second.output_text, second.usage.input_tokens) == (same.output_text, same.usage.input_tokens)
    items = [item async for item in client.responses.input_items.list(second.id, order="asc", limit=2)]
    assert [item.type for item in items] == ["message"] * 3
    assert items[1].id == first.output[0].id
    newest = await client.responses.input_items.list(second.id, limit=1)
    assert newest.data[0].id == items[2].id
    referred = await client.responses.create(
        **{**more, "input": [by_hand[0], {"type": "item_reference", "id": first.output[0].id}, by_hand[2]]}
    )
    assert referred.usage is not None
    assert referred.usage.input_tokens == second.usage.input_tokens


async def test_a_background_response_is_polled_and_streamed(client: openai.AsyncOpenAI) -> None:
    begun = await client.responses.create(**ASK, max_output_tokens=20, background=True)
    assert (begun.status, begun.background) == ("queued", True)
    events = [event async for event in await client.responses.retrieve(begun.id, stream=True)]
    assert [event.type for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    found = await client.responses.retrieve(begun.id)
    assert found.status == "incomplete"
    assert events[-1].type == "response.incomplete"
    assert events[-1].response == found
    whole = await client.responses.create(**ASK, max_output_tokens=20)
    assert found.output_text == whole.output_text
    middle = events[len(events) // 2].sequence_number
    rest = [event async for event in await client.responses.retrieve(begun.id, stream=True, starting_after=middle)]
    said = [e.delta for e in (*events[: len(events) // 2 + 1], *rest) if e.type == "response.output_text.delta"]
    assert "".join(said) == whole.output_text


async def test_a_background_response_is_cancelled(client: openai.AsyncOpenAI, stack: Stack) -> None:
    engine = stack.engines[0]
    engine._settings = engine._settings.model_copy(update={"base_ms": 50.0})
    try:
        begun = await client.responses.create(
            **ASK, max_output_tokens=400, background=True, stream=True, extra_body={"ignore_eos": True}
        )
        events, response_id = [], ""
        async for event in begun:
            events.append(event)
            if event.type == "response.created":
                response_id = event.response.id
            if event.type == "response.output_text.delta" and len(events) < 12:
                cancelled = await client.responses.cancel(response_id)
                assert cancelled.status == "cancelled"
        last = events[-1]
        assert last.type == "response.incomplete"
        assert last.response.status == "cancelled"
        assert last.response.output_text.startswith(
            "".join(e.delta for e in events if e.type == "response.output_text.delta")
        )
        assert (await client.responses.cancel(response_id)).status == "cancelled"
        await until(lambda: engine.stats().running == 0)
    finally:
        engine._settings = engine._settings.model_copy(update={"base_ms": 1.0})


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=yes", "stream"),
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=1&starting_after=-1", "starting_after"),
    ],
)
async def test_a_wrong_query_of_a_stored_response_is_named(stack: Stack, query: str, param: str) -> None:
    _, response, _ = await call(stack, "POST", "/v1/responses", json=ASK)
    status, found, _ = await call(stack, "GET", f"/v1/responses/{response['id']}?{query}")
    assert (400, param) == (status, found["error"]["param"])
    status, found, _ = await call(stack, "GET", f"/v1/responses/{response['id']}?stream=false")
    assert (200, response["id"]) == (status, found["id"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 9}, "temperature"),
        ({"input": []}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"truncation": "always"}, "truncation"),
        ({"background": True, "store": False}, "store"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_tokens": 4}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"stream_options": {}}, "stream_options"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"max_output_tokens": 4000}, "max_output_tokens"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"n" * 65: ""}}, "metadata"),
        ({"metadata": {"a": "v" * 513}}, "metadata"),
        ({"input": "word " * 1200}, "input"),
        ({"text": {"verbosity": 3}}, "text.verbosity"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"tools": [{"type": "function", "function": {"name": "a"}}]}, "tools[0].name"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"prompt_cache_key": "x" * 129}, "prompt_cache_key"),
    ],
)
async def test_a_wrong_field_is_named(stack: Stack, fields: dict[str, Any], param: str) -> None:
    for more in ({}, {"stream": True}, {"background": True}):
        if ("stream_options" in fields and "stream" in more) or ("background" in fields and more):
            continue
        status, found, _ = await call(stack, "POST", "/v1/responses", json={**ASK, **more, **fields})
        assert (status, found["error"]["param"]) == (400, param), found


@pytest.mark.parametrize("how", ["stream", "background"])
async def test_a_refusal_is_told_though_redis_fails_and_nothing_is_kept_of_it_later(
    stack: Stack, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = stack.routers[0].http
    assert http is not None
    store = http._runs.store
    delete, tries = store.delete, list[ResponseName]()

    async def fails(name: ResponseName, **claim: Any) -> bool:
        tries.append(name)
        if len(tries) < 3:
            raise QueueUnavailableError("away")
        return await delete(name, **claim)

    monkeypatch.setattr(store, "delete", fails)
    monkeypatch.setattr("router.http.responses.runs._RETRY_S", 0.01)
    status, found, _ = await call(stack, "POST", "/v1/responses", json={**ASK, how: True, "input": "word " * 1200})
    assert (status, found["error"]["param"]) == (400, "input"), found

    async def is_deleted() -> bool:
        return len(tries) == 3 and await store.get(tries[0]) is None

    await until(is_deleted)


@pytest.mark.parametrize("empty", [{"input": []}, {"input": ""}, {"input": None}, {}])
async def test_a_conversation_goes_on_without_anything_new(
    stack: Stack, client: openai.AsyncOpenAI, empty: dict[str, Any]
) -> None:
    """As where an answer was cut: the model is asked for more."""
    first = await client.responses.create(**ASK, max_output_tokens=4)
    asked = {"model": "demo", "temperature": 0, "max_output_tokens": 4, "truncation": "auto", **empty}
    status, found, _ = await call(stack, "POST", "/v1/responses", json={**asked, "previous_response_id": first.id})
    assert (status, found.get("previous_response_id")) == (200, first.id), found
    items = (await client.responses.input_items.list(found["id"], order="asc")).data
    assert [first.output[0].id] == [item.id for item in items][1:]
    status, found, _ = await call(stack, "POST", "/v1/responses", json={**asked, "input": []})
    assert (status, found["error"]["param"]) == (400, "input")
    assert "previous_response_id" in found["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (1.0, 1.0, 0.0, 0.0)),
        ({"temperature": None, "frequency_penalty": None}, (1.0, 1.0, 0.0, 0.0)),
        (
            {"temperature": 0, "top_p": 0.5, "frequency_penalty": 0.25, "presence_penalty": -0.5},
            (0.0, 0.5, 0.25, -0.5),
        ),
    ],
)
async def test_a_response_repeats_its_sampling(
    stack: Stack, fields: dict[str, Any], expected: tuple[float, ...]
) -> None:
    """OpenRouter's SDK accepts no response without all four."""
    body = {"model": "demo", "input": "What is Penstock?", "max_output_tokens": 2, **fields}
    _, found, _ = await call(stack, "POST", "/v1/responses", json=body)
    _, kept, _ = await call(stack, "GET", f"/v1/responses/{found['id']}")
    names = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
    assert [expected, expected] == [tuple(each.get(name) for name in names) for each in (found, kept)]


@pytest.mark.parametrize("name", ["temperature", "top_p", "frequency_penalty", "presence_penalty"])
async def test_sampling_of_a_response_has_its_effect(stack: Stack, name: str) -> None:
    status, found, _ = await call(stack, "POST", "/v1/responses", json={**ASK, name: 9})
    assert (400, name) == (status, found["error"]["param"])


async def test_a_field_that_nobody_knows_is_left_out_and_named(stack: Stack) -> None:
    more = {"user": "u", "prompt_cache_key": "p", "include": ["reasoning.encrypted_content"], "frobnicate": 1}
    body = {**ASK, **more, "max_output_tokens": 2, "reasoning": {"summary": "auto"}, "text": {"verbosity": "low"}}
    status, found, headers = await call(stack, "POST", "/v1/responses", json=body)
    assert (status, found["user"]) == (200, "u")
    assert found["text"]["verbosity"] == "medium"
    assert headers["x-penstock-ignored"] == "include[0], reasoning.summary, frobnicate, text.verbosity"


async def test_unknown_ids_are_not_found(stack: Stack) -> None:
    for response_id in ("resp_" + "0" * 32, "resp_1", "x", "resp_%00"):
        for method, path in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/cancel"),
            ("GET", "/input_items"),
            ("GET", "?stream=true"),
        ):
            status, found, _ = await call(stack, method, f"/v1/responses/{response_id}{path}")
            assert (status, found["error"]["code"]) == (404, "response_not_found")


async def test_a_repeat_under_an_idempotency_key_gets_the_same_response(stack: Stack) -> None:
    body = {**ASK, "max_output_tokens": 6, "temperature": 1}
    keyed: dict[str, Any] = {"json": body, "headers": {"Idempotency-Key": "k1"}}
    first = await call(stack, "POST", "/v1/responses", **keyed)
    assert first[0] == 200
    assert (await call(stack, "POST", "/v1/responses", **keyed))[1] == first[1]
    other = {**keyed, "json": {**body, "max_output_tokens": 7}}
    status, found, _ = await call(stack, "POST", "/v1/responses", **other)
    assert (status, found["error"]["code"]) == (409, "idempotency_key_reused")


async def test_many_background_responses_run_together(client: openai.AsyncOpenAI) -> None:
    begun = await asyncio.gather(
        *(client.responses.create(**ASK, max_output_tokens=10, background=True) for _ in range(30))
    )
    for each in begun:
        events = [event async for event in await client.responses.retrieve(each.id, stream=True)]
        assert events[-1].type == "response.incomplete"


async def test_a_response_that_is_deleted_ends(client: openai.AsyncOpenAI, stack: Stack) -> None:
    engine = stack.engines[0]
    engine._settings = engine._settings.model_copy(update={"base_ms": 50.0})
    try:
        long: dict[str, Any] = {**ASK, "max_output_tokens": 400, "extra_body": {"ignore_eos": True}}
        begun = await client.responses.create(**long, background=True)
        await until(lambda: engine.stats().running == 1)
        await client.responses.delete(begun.id)
        await until(lambda: engine.stats().running == 0)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(begun.id)
    finally:
        engine._settings = engine._settings.model_copy(update={"base_ms": 1.0})


async def test_a_response_in_progress_can_not_be_gone_on_from(client: openai.AsyncOpenAI, stack: Stack) -> None:
    engine = stack.engines[0]
    engine._settings = engine._settings.model_copy(update={"base_ms": 50.0})
    try:
        long: dict[str, Any] = {**ASK, "max_output_tokens": 400, "extra_body": {"ignore_eos": True}}
        begun = await client.responses.create(**long, background=True)
        with pytest.raises(openai.BadRequestError, match="must name a response that has ended"):
            await client.responses.create(**ASK, previous_response_id=begun.id)
        await client.responses.delete(begun.id)
    finally:
        engine._settings = engine._settings.model_copy(update={"base_ms": 1.0})


def response_keys(stack: Stack) -> set[bytes]:
    """Name all that is stored about responses."""
    return {key for key in stack.store.execute("KEYS", "*") if b"{responses}" in key}


async def test_what_is_refused_leaves_nothing(stack: Stack) -> None:
    before = response_keys(stack)
    for more in ({"background": True}, {"stream": True}, {}):
        status, found, _ = await call(stack, "POST", "/v1/responses", json={**ASK, **more, "model": "none"})
        assert (status, found["error"]["code"]) == (404, "model_not_found")
    assert response_keys(stack) == before


async def test_the_sdk_parses_a_plain_answer(client: openai.AsyncOpenAI) -> None:
    found = await client.responses.parse(**ASK)
    assert found.output_text
    assert found.output_parsed is None


async def test_a_repeated_stream_under_a_key_tells_the_same(client: openai.AsyncOpenAI) -> None:
    ask: dict[str, Any] = {**ASK, "temperature": 1, "max_output_tokens": 9, "stream": True}
    keyed = {"Idempotency-Key": "streamed"}
    events = [[e async for e in await client.responses.create(**ask, extra_headers=keyed)] for _ in range(2)]
    assert events[0][-1] == events[1][-1]
    texts = ["".join(e.delta for e in each if e.type == "response.output_text.delta") for each in events]
    assert texts[0] == texts[1]
