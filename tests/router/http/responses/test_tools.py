"""Reasoning, tools and log probabilities over the Responses API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.router.http.responses.conftest import (
    HTTP,
    REASONING,
    TEXT,
    TOOL,
    call,
    pool_with_tools,
    results_of,
    sdk,
    written_again,
)
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK: dict[str, Any] = {"model": "demo", "input": "What is the weather?", "temperature": 0, "max_output_tokens": 400}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    async with running_stack(folder, router=HTTP, pools={"demo": pool_with_tools(folder)}) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk(stack) as found:
        yield found


async def test_an_answer_has_its_reasoning_its_text_and_its_calls(client: openai.AsyncOpenAI) -> None:
    found = await client.responses.create(**ASK, tools=[TOOL])
    assert found.status == "completed"
    assert [item.type for item in found.output] == ["reasoning", "message", "function_call", "function_call"]
    reasoning, _message, *calls = found.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == REASONING
    assert found.output_text == f"\n\n{TEXT}"
    asked = [(item.name, item.arguments, item.status) for item in calls if item.type == "function_call"]
    assert asked == [("look", '{"city": "Ulm"}', "completed"), ("look", '{"city": "Bonn"}', "completed")]
    assert found.usage is not None
    assert 0 < found.usage.output_tokens_details.reasoning_tokens < found.usage.output_tokens
    assert found.tools[0].to_dict() == TOOL


@pytest.mark.parametrize("more", [{"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "none"}])
async def test_tools_count_as_input(client: openai.AsyncOpenAI, more: dict[str, Any]) -> None:
    asked = {"model": ASK["model"], "input": ASK["input"], **more}
    usage = (await client.responses.create(**asked, max_output_tokens=1)).usage
    assert usage is not None
    assert (await client.responses.input_tokens.count(**asked)).input_tokens == usage.input_tokens


@pytest.mark.parametrize("background", [False, True])
async def test_a_stream_tells_all_of_it_as_it_is_kept(client: openai.AsyncOpenAI, background: bool) -> None:
    said: dict[int, str] = {}
    numbers = []
    stream = await client.responses.create(**ASK, tools=[TOOL], stream=True, background=background)
    async for event in stream:
        numbers.append(event.sequence_number)
        if event.type in (
            "response.reasoning_text.delta",
            "response.output_text.delta",
            "response.function_call_arguments.delta",
        ):
            said[event.output_index] = said.get(event.output_index, "") + event.delta
        last = event
    assert last.type == "response.completed"
    assert said[0] == REASONING
    assert said[1] == last.response.output_text
    assert [said[2], said[3]] == ['{"city": "Ulm"}', '{"city": "Bonn"}']
    assert numbers == sorted(set(numbers))
    again = [e async for e in await client.responses.retrieve(last.response.id, stream=True)]
    assert again[-1] == last
    half = numbers[len(numbers) // 2]
    rest = [e async for e in await client.responses.retrieve(last.response.id, stream=True, starting_after=half)]
    assert rest[-1] == last


async def test_the_sdk_collects_calls_from_its_stream(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(**ASK, tools=[TOOL]) as stream:
        found = await stream.get_final_response()
    assert [item.type for item in found.output] == ["reasoning", "message", "function_call", "function_call"]


async def test_a_conversation_goes_on_with_the_results_of_its_calls(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(**ASK, tools=[TOOL])
    outputs = results_of(first)
    more = {**ASK, "input": outputs, "tools": [TOOL]}
    second = await client.responses.create(**more, previous_response_id=first.id)
    by_hand = written_again(ASK["input"], first, outputs)
    same = await client.responses.create(**{**more, "input": by_hand})
    assert second.usage is not None
    assert same.usage is not None
    assert second.usage.input_tokens == same.usage.input_tokens
    items = [item async for item in client.responses.input_items.list(second.id, order="asc")]
    assert [item.type for item in items] == [
        *("message", "reasoning", "message", "function_call", "function_call"),
        *("function_call_output", "function_call_output"),
    ]


async def test_a_tool_may_return_nothing(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(**ASK, tools=[TOOL])
    tokens = []
    for nothing in ({"output": ""}, {"output": None}, {}):
        outputs: list[Any] = [
            {"type": "function_call_output", "call_id": c["call_id"], **nothing} for c in results_of(first)
        ]
        found = await client.responses.create(**{**ASK, "input": outputs}, tools=[TOOL], previous_response_id=first.id)
        assert found.usage is not None
        tokens.append(found.usage.input_tokens)
    assert 3 * tokens[:1] == tokens


async def test_a_choice_of_tools_is_honoured(client: openai.AsyncOpenAI, stack: Stack) -> None:
    one = await client.responses.create(**ASK, tools=[TOOL], parallel_tool_calls=False)
    assert [item.type for item in one.output] == ["reasoning", "message", "function_call"]
    allowed: Any = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}
    found = await client.responses.create(**ASK, tools=[TOOL], tool_choice=allowed)
    assert found.tool_choice.to_dict() == allowed  # type: ignore[union-attr]
    for choice, param in (
        ({"type": "function", "name": "go"}, "tool_choice"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.tools"),
        ({"type": "file_search"}, "tool_choice.type"),
    ):
        body = {**ASK, "tools": [TOOL], "tool_choice": choice}
        status, error, _ = await call(stack, "POST", "/v1/responses", json=body)
        assert status == 400
        assert error["error"]["param"].startswith(param)


async def test_what_is_left_out_inside_fields_is_named(stack: Stack) -> None:
    text = {"format": {"type": "text", "frobnicate": 1}, "tone": "kind", "verbosity": None}
    body = {**ASK, "max_output_tokens": 2, "tools": [{**TOOL, "defer_loading": True}], "text": text, "top_logprobs": 2}
    status, _, headers = await call(stack, "POST", "/v1/responses", json=body)
    assert 200 == status
    assert "text.tone, text.format.frobnicate, tools[0].defer_loading, top_logprobs" == headers["x-penstock-ignored"]


async def test_text_has_its_log_probabilities(tmp_path: Path) -> None:
    ask = {**ASK, "max_output_tokens": 12, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    async with running_stack(tmp_path, router=HTTP) as stack, sdk(stack) as client:
        found = await client.responses.create(**ask)
        part = found.output[0].content[0]  # type: ignore[union-attr,index]
        assert part.type == "output_text"
        assert part.logprobs is not None
        assert len(part.logprobs) == 12
        assert all(len(each.top_logprobs) == 2 for each in part.logprobs)
        assert b"".join(bytes(each.bytes) for each in part.logprobs).decode() == found.output_text
        for background in (False, True):
            streamed = [e async for e in await client.responses.create(**ask, stream=True, background=background)]
            deltas = [each for e in streamed if e.type == "response.output_text.delta" for each in e.logprobs]
            assert [each.token for each in deltas] == [each.token for each in part.logprobs]
            assert streamed[-1].type == "response.incomplete"
            assert streamed[-1].response.output_text == found.output_text


@pytest.mark.parametrize("tools", [[], [TOOL]])
async def test_log_probabilities_are_those_of_the_text_alone(client: openai.AsyncOpenAI, tools: list[Any]) -> None:
    ask: dict[str, Any] = {**ASK, "tools": tools, "include": ["message.output_text.logprobs"]}
    found = [await client.responses.create(**ask)]
    for background in (False, True):
        events = [each async for each in await client.responses.create(**ask, stream=True, background=background)]
        deltas = [each for e in events if e.type == "response.output_text.delta" for each in e.logprobs]
        assert b"".join(bytes(ord(c) for c in each.token) for each in deltas).decode() == found[0].output_text
        assert events[-1].type == "response.completed"
        found.append(events[-1].response)
    for each in found:
        part = each.output[1].content[0]  # type: ignore[union-attr,index]
        assert part.type == "output_text"
        assert b"".join(bytes(one.bytes) for one in part.logprobs or ()).decode() == part.text == found[0].output_text


async def test_whole_numbers_of_any_size_are_kept(client: openai.AsyncOpenAI) -> None:
    unsigned = {"type": "object", "properties": {"id": {"type": "integer", "exclusiveMaximum": 1 << 64}}}
    tool: Any = {**TOOL, "parameters": unsigned}
    for background in (False, True):
        asked = await client.responses.create(model="demo", input="hi", tools=[tool], background=background)
        events = [each async for each in await client.responses.retrieve(asked.id, stream=True)]
        found = await client.responses.retrieve(asked.id)
        assert found.status == "completed"
        assert found.tools[0].to_dict()["parameters"] == unsigned
        assert events[-1].type == "response.completed"
        assert events[-1].response == found
