"""Responses."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from tests.conformance.target import MARKS, SCHEMA, Target, named, refused

pytestmark = MARKS
ENDPOINT = ("POST", "/v1/responses")
PATH = ENDPOINT[1]
TOOL = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}

FIELDS = (
    "background include instructions max_output_tokens max_tool_calls metadata parallel_tool_calls "
    "previous_response_id prompt_cache_key reasoning safety_identifier service_tier store stream temperature text "
    "tool_choice tools top_logprobs top_p truncation user"
)


def ask(target: Target, **more: Any) -> dict[str, Any]:
    return {"model": target.model, "input": "What is a penstock?", "max_output_tokens": 16, "temperature": 0, **more}


async def test_a_response_has_openais_form(target: Target) -> None:
    reply = await target.post(PATH, ask(target))
    found = Response.model_validate_json(reply.body, strict=True)
    assert found.status in ("completed", "incomplete")
    assert found.usage is not None
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens
    assert reply.headers["x-request-id"]


@pytest.mark.parametrize(
    "said",
    [
        [{"role": "user", "content": "Hello"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
        [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
            {"role": "user", "content": "?"},
        ],
    ],
    ids=["easy", "parts", "developer", "turns"],
)
async def test_a_form_of_input_is_taken(target: Target, said: Any) -> None:
    await target.ok(PATH, ask(target, input=said))


@pytest.mark.parametrize(
    "field",
    FIELDS.split(),
)
async def test_a_field_may_be_null(target: Target, field: str) -> None:
    await target.ok(PATH, ask(target, **{field: None}))


async def test_events_are_numbered_and_end_with_the_response(target: Target) -> None:
    reply = await target.post(PATH, ask(target, stream=True))
    names = [line[7:] for line in reply.body.decode().split("\n") if line.startswith("event: ")]
    events = [json.loads(each) for each in reply.data if each != "[DONE]"]
    assert names == [event["type"] for event in events]
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] in ("response.completed", "response.incomplete")


async def test_the_sdks_stream_says_what_the_whole_response_says(target: Target, sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.responses.create(**ask(target))
    async with sdk.responses.stream(**ask(target)) as stream:
        text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
        last = await stream.get_final_response() if whole.status == "completed" else None
    assert text == whole.output_text
    assert last is None or last.output_text == text


async def test_a_response_is_kept_listed_and_deleted(target: Target, sdk: openai.AsyncOpenAI) -> None:
    found = await sdk.responses.create(**ask(target))
    try:
        assert (await sdk.responses.retrieve(found.id)).output_text == found.output_text
    except openai.NotFoundError:
        if target.complete:
            raise
        pytest.skip("the server keeps no responses")
    assert (await sdk.responses.input_items.list(found.id)).data
    await sdk.responses.delete(found.id)
    refused(await target.call("GET", f"{PATH}/{found.id}"), 404)


async def test_a_conversation_goes_on_from_a_response(target: Target, sdk: openai.AsyncOpenAI) -> None:
    first = await sdk.responses.create(**ask(target))
    try:
        second = await sdk.responses.create(**ask(target, previous_response_id=first.id))
    except openai.NotFoundError:
        if target.complete:
            raise
        pytest.skip("the server keeps no responses")
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens


async def test_a_tool_is_called(target: Target, sdk: openai.AsyncOpenAI) -> None:
    body: dict[str, Any] = ask(target, model=target.tool_model, tools=[TOOL], max_output_tokens=300)
    calls = [item for item in (await sdk.responses.create(**body)).output if item.type == "function_call"]
    if not calls and not target.complete:
        pytest.skip("the model called no tool")
    assert calls[0].name == "weather"
    assert "city" in json.loads(calls[0].arguments)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"role": "nobody", "content": "x"}]}, "input[0]"),
        ({"temperature": 9}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"truncation": "x"}, "truncation"),
        ({"stream": 5}, "stream"),
        ({"store": "x"}, "store"),
    ],
    ids=named,
)
async def test_a_wrong_field_is_refused_and_named(target: Target, fields: dict[str, Any], param: str) -> None:
    refused(await target.post(PATH, ask(target, **fields)), 400, param)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")]
)
async def test_an_unknown_response_is_not_found(target: Target, method: str, path: str) -> None:
    refused(await target.call(method, f"{PATH}/resp_none{path}"), 404)
