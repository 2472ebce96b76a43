"""Anthropic's messages."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from anthropic.types import Message

from tests.conformance.target import ASK, MARKS, SCHEMA, Reply, Target, named

pytestmark = MARKS
ENDPOINT = ("POST", "/v1/messages")
PATH = ENDPOINT[1]
TOOL = {"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA}
FIELDS = "metadata service_tier stop_sequences stream system temperature thinking tool_choice tools top_k top_p"


def ask(target: Target, **more: Any) -> dict[str, Any]:
    return {"model": target.model, "messages": ASK, "max_tokens": 12, **more}


def refused(reply: Reply, status: int, kind: str) -> None:
    assert reply.status == status, reply.body
    found = reply.json
    assert found["type"] == "error"
    assert found["error"]["type"] == kind
    assert found["error"]["message"]


async def test_a_message_has_anthropics_form(target: Target) -> None:
    reply = await target.post(PATH, ask(target))
    found = Message.model_validate_json(reply.body, strict=True)
    assert (found.type, found.role, found.model) == ("message", "assistant", target.model)
    assert found.stop_reason in ("end_turn", "max_tokens")
    assert reply.headers["request-id"]


@pytest.mark.parametrize(
    "fields",
    [
        {"system": "Be brief."},
        {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
        {"messages": [*ASK, {"role": "assistant", "content": "Hi"}, *ASK]},
        {"metadata": {"user_id": "u"}},
        {"temperature": 0.5, "top_p": 0.9, "top_k": 5},
        {"vendor_field": 1},
    ],
    ids=["system", "system_blocks", "blocks", "turns", "metadata", "sampling", "unknown"],
)
async def test_a_form_of_request_is_taken(target: Target, fields: dict[str, Any]) -> None:
    await target.ok(PATH, ask(target, **fields))


@pytest.mark.parametrize(
    "field",
    FIELDS.split(),
)
async def test_a_field_may_be_null(target: Target, field: str) -> None:
    await target.ok(PATH, ask(target, **{field: None}))


async def test_events_come_in_anthropics_order(target: Target) -> None:
    reply = await target.post(PATH, ask(target, stream=True))
    names = [line[7:].strip() for line in reply.body.decode().split("\n") if line.startswith("event: ")]
    assert names == [json.loads(each)["type"] for each in reply.data]
    told = [name for name in names if name != "ping"]
    assert [told[0], told[-2], told[-1]] == ["message_start", "message_delta", "message_stop"]
    assert told.count("content_block_start") == told.count("content_block_stop") == 1


async def test_the_sdks_stream_says_what_the_whole_message_says(
    target: Target, claude: anthropic.AsyncAnthropic
) -> None:
    body = ask(target, temperature=0)
    whole = Message.model_validate(await target.ok(PATH, body), strict=True)
    del body["temperature"]
    async with claude.messages.stream(**body, extra_body={"temperature": 0}) as stream:
        found = await stream.get_final_message()
    assert [block.model_dump() for block in found.content] == [block.model_dump() for block in whole.content]
    assert (found.stop_reason, found.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


async def test_a_tool_is_called_and_its_result_taken(target: Target) -> None:
    body = ask(target, model=target.tool_model, tools=[TOOL], max_tokens=300, temperature=0)
    found = await target.ok(PATH, body)
    calls = [block for block in found["content"] if block["type"] == "tool_use"]
    if not calls and not target.complete:
        pytest.skip("the model called no tool")
    assert found["stop_reason"] == "tool_use"
    assert all(call["id"].startswith("toolu_") and "city" in call["input"] for call in calls)
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "rain"} for call in calls]
    said = [*ASK, {"role": "assistant", "content": found["content"]}, {"role": "user", "content": results}]
    await target.ok(PATH, {**body, "messages": said})


async def test_models_are_listed(target: Target, claude: anthropic.AsyncAnthropic) -> None:
    found = [model async for model in claude.models.list()]
    assert target.model in [model.id for model in found]
    assert {model.type for model in found} == {"model"}
    assert (await claude.models.retrieve(target.model)).display_name


async def test_models_are_listed_page_by_page(claude: anthropic.AsyncAnthropic) -> None:
    whole = [model.id async for model in claude.models.list()]
    first = await claude.models.list(limit=1)
    assert ([model.id for model in first.data], first.has_more) == (whole[:1], len(whole) > 1)
    assert [model.id async for model in claude.models.list(limit=1)] == whole


async def test_tokens_are_counted(target: Target) -> None:
    body = {"model": target.model, "messages": ASK}
    assert (await target.ok(f"{PATH}/count_tokens", body))["input_tokens"] > 0


async def test_keys_come_in_both_headers(target: Target) -> None:
    if not target.key:
        pytest.skip("the server wants no key (give --api-key)")
    for headers in ({"x-api-key": target.key}, {"authorization": f"Bearer {target.key}"}):
        headers["anthropic-version"] = "2023-06-01"
        assert (await target.post(PATH, ask(target), key=False, headers=headers)).status == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": None},
        {"max_tokens": 0},
        {"messages": []},
        {"messages": [{"role": "user", "content": 5}]},
        {"temperature": 9},
        {"tools": [{"name": "weather"}, 5]},
        {"tool_choice": {"type": "some"}},
        {"stream": "x"},
    ],
    ids=named,
)
async def test_a_wrong_field_is_refused(target: Target, fields: dict[str, Any]) -> None:
    refused(await target.post(PATH, ask(target, **fields)), 400, "invalid_request_error")


async def test_an_unknown_model_is_not_found(target: Target) -> None:
    refused(await target.post(PATH, ask(target, model="no-such-model")), 404, "not_found_error")


async def test_a_bad_body_is_refused_in_anthropics_form(target: Target) -> None:
    reply = await target.call("POST", PATH, data=b"{", headers={"content-type": "application/json"})
    refused(reply, 400, "invalid_request_error")
    assert (await target.call("GET", PATH)).json["type"] == "error"
