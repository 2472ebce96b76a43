"""Tools and reasoning through the official SDKs, against a real router and an engine that answers with both."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio

from tests.router.http.test_openai import HTTP, base, post
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANSWER = (
    "<think>They ask about rain.</think>One moment."
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)
ASK: list[Any] = [{"role": "user", "content": "Does it rain in Paris and Oslo?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), router=HTTP, sim={"answer": ANSWER}) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{base(stack)}/v1", api_key="none", max_retries=0) as found:
        yield found


async def test_calls_and_reasoning_are_the_same_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": ASK, "tools": TOOLS}
    whole = await client.chat.completions.create(**asked)
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "One moment."
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning"] == choice.message.model_extra["reasoning_content"]
    assert choice.message.model_extra["reasoning"] == "They ask about rain."
    assert choice.message.tool_calls is not None
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]  # type: ignore[union-attr]
    assert calls == [("weather", {"city": "Paris"}), ("weather", {"city": "Oslo"})]
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    assert whole.usage.completion_tokens_details.reasoning_tokens

    async with client.chat.completions.stream(**asked) as stream:
        streamed = await stream.get_final_completion()
    again = streamed.choices[0]
    assert (again.finish_reason, again.message.content) == ("tool_calls", "One moment.")
    assert again.message.tool_calls is not None
    assert calls == [(each.function.name, json.loads(each.function.arguments)) for each in again.message.tool_calls]
    assert len({each.id for each in again.message.tool_calls}) == 2


async def test_pieces_of_a_call_have_its_name_once(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="demo", messages=ASK, tools=TOOLS, stream=True)
    names: dict[int, list[str]] = {}
    arguments: dict[int, str] = {}
    async for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.function is not None
            assert call.function.arguments is not None
            arguments[call.index] = arguments.get(call.index, "") + call.function.arguments
            if call.id:
                assert call.type == "function"
                names.setdefault(call.index, []).append(call.function.name or "")
            else:
                assert call.function.name is None
    assert names == {0: ["weather"], 1: ["weather"]}
    assert [json.loads(arguments[index])["city"] for index in (0, 1)] == ["Paris", "Oslo"]


async def test_only_the_first_call_counts_without_parallel_calls(client: openai.AsyncOpenAI) -> None:
    found = await client.chat.completions.create(model="demo", messages=ASK, tools=TOOLS, parallel_tool_calls=False)
    assert len(found.choices[0].message.tool_calls or ()) == 1


async def test_an_answer_and_its_results_go_back_into_the_conversation(client: openai.AsyncOpenAI) -> None:
    first = (await client.chat.completions.create(model="demo", messages=ASK, tools=TOOLS)).choices[0].message
    assert first.tool_calls is not None
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in first.tool_calls]
    history: list[Any] = [*ASK, first.model_dump(exclude_none=True), *results]
    asked: dict[str, Any] = {"model": "demo", "tools": TOOLS}
    short = await client.chat.completions.create(**asked, messages=ASK)
    long = await client.chat.completions.create(**asked, messages=history)
    assert short.usage is not None
    assert long.usage is not None
    assert long.usage.prompt_tokens > short.usage.prompt_tokens


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ],
)
async def test_a_wrong_choice_is_named(stack: Stack, fields: dict[str, Any], field: str) -> None:
    body = {"model": "demo", "messages": ASK, "tools": TOOLS, **fields}
    status, found, _ = await post(stack, "/v1/chat/completions", json=body)
    assert status == 400
    assert (found["error"]["param"] or "").startswith(field), found


_FORM = {"type": "json_schema", "schema": {"type": "object", "additionalProperties": False}}
_FLAT = {"type": "function", "name": "weather", "parameters": SCHEMA}


@pytest.mark.parametrize(
    ("path", "fields", "ignored"),
    [
        (
            "/v1/chat/completions",
            {
                "messages": ASK,
                "tools": TOOLS,
                "tool_choice": "required",
                "response_format": {"type": "json_schema", "json_schema": {"name": "form", "schema": SCHEMA}},
            },
            "response_format",
        ),
        (
            "/v1/responses",
            {
                "input": ASK,
                "tools": [_FLAT],
                "tool_choice": {"type": "function", "name": "weather"},
                "text": {"format": {**_FORM, "name": "form"}},
            },
            "text.format",
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 200,
                "messages": ASK,
                "tools": [{"name": "weather", "input_schema": SCHEMA}],
                "tool_choice": {"type": "any"},
                "output_config": {"format": _FORM},
            },
            "output_config.format",
        ),
    ],
)
async def test_the_form_of_a_text_is_left_out_where_a_tool_must_be_called(
    stack: Stack, path: str, fields: dict[str, Any], ignored: str
) -> None:
    status, found, headers = await post(stack, path, json={"model": "demo", **fields})
    assert 200 == status, found
    assert "Paris" in json.dumps(found)
    assert ignored == headers["x-penstock-ignored"]


async def test_a_constraint_of_all_output_does_not_go_with_a_tool_that_must_be_called(stack: Stack) -> None:
    body = {"model": "demo", "messages": ASK, "tools": TOOLS, "tool_choice": "required", "guided_choice": ["yes", "no"]}
    status, found, _ = await post(stack, "/v1/chat/completions", json=body)
    assert (400, "guided_choice") == (status, found["error"]["param"])


@pytest.mark.parametrize("text", ['{"city": "Pa', "[1]"])
async def test_a_conversation_goes_on_after_arguments_that_a_model_wrote_wrongly(stack: Stack, text: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": text}}
    result = {"role": "tool", "tool_call_id": "c1", "content": "These arguments are no JSON object."}
    body = {"messages": [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}, result]}
    asked = {"model": "demo", "tools": TOOLS, "max_tokens": 8}
    status, _, headers = await post(stack, "/v1/chat/completions", json={**asked, **body})
    assert (200, "messages[1].tool_calls[0].function.arguments") == (status, headers["x-penstock-ignored"])
    good = {"type": "function_call", "call_id": "c0", "name": "weather", "arguments": "{}"}
    items = [
        *ASK,
        good,
        {**good, "call_id": "c1", "arguments": text},
        *({"type": "function_call_output", "call_id": each, "output": result["content"]} for each in ("c0", "c1")),
    ]
    status, found, headers = await post(
        stack, "/v1/responses", json={"model": "demo", "input": items, "max_output_tokens": 16}
    )
    assert 200 == status, found
    assert "input[2].arguments" == headers["x-penstock-ignored"]


async def test_anthropics_sdk_gets_blocks_of_thinking_text_and_calls(stack: Stack) -> None:
    tools: Any = [{"name": "weather", "input_schema": SCHEMA}]
    asked: dict[str, Any] = {
        "model": "demo", "messages": ASK, "tools": tools, "max_tokens": 500,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }  # fmt: skip
    async with anthropic.AsyncAnthropic(base_url=base(stack), api_key="none", max_retries=0) as client:
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
        hidden = await client.messages.create(**{**asked, "thinking": {"type": "disabled"}})
    for message in (whole, streamed):
        assert ["thinking", "text", "tool_use", "tool_use"] == [block.type for block in message.content]
        assert "tool_use" == message.stop_reason
        assert {"city": "Paris"} == message.content[2].input  # type: ignore[union-attr]
    assert ["text", "tool_use", "tool_use"] == [block.type for block in hidden.content]
