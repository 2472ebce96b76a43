"""Tools and reasoning."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.conformance.target import CHAT, MARKS, Target, named, refused

pytestmark = MARKS


async def called(target: Target, **more: Any) -> dict[str, Any]:
    """Return a choice with calls."""
    choice: dict[str, Any] = (await target.ok(CHAT, target.tools(**more)))["choices"][0]
    if not choice["message"].get("tool_calls") and not target.complete:
        pytest.skip("the model called no tool")
    return choice


async def streamed(target: Target, **more: Any) -> list[Any]:
    """Return the pieces of calls in a stream."""
    chunks = await target.chunks(CHAT, target.tools(**more))
    pieces = [
        call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls") or ()
    ]
    if not pieces and not target.complete:
        pytest.skip("the model called no tool")
    assert pieces
    return pieces


@pytest.mark.parametrize("choice", ["auto", None])
async def test_a_call_has_openais_form(target: Target, choice: Any) -> None:
    found = await called(target, tool_choice=choice)
    assert found["finish_reason"] == "tool_calls"
    calls = found["message"]["tool_calls"]
    assert len({call["id"] for call in calls}) == len(calls)
    for call in calls:
        assert call["id"]
        assert call["type"] == "function"
        assert call["function"]["name"] == "weather"
        assert "city" in json.loads(call["function"]["arguments"])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_a_call_that_must_be_is_taken(target: Target, choice: Any) -> None:
    found = await target.ok(CHAT, target.tools(tool_choice=choice))
    assert found["choices"][0]["finish_reason"] in ("tool_calls", "length")


async def test_only_the_first_piece_of_a_call_has_its_name(target: Target) -> None:
    seen: set[int] = set()
    for piece in await streamed(target):
        if piece["index"] in seen:
            assert not piece.get("id")
            assert not piece["function"].get("name")
        else:
            assert piece["id"]
            assert piece["type"] == "function"
            assert piece["function"]["name"] == "weather"
        seen.add(piece["index"])
    assert seen == {*range(len(seen))}


async def test_pieces_of_arguments_are_text(target: Target) -> None:
    arguments: dict[int, str] = {}
    for piece in await streamed(target):
        more = piece["function"].get("arguments", "")
        assert isinstance(more, str)
        arguments[piece["index"]] = arguments.get(piece["index"], "") + more
    for each in arguments.values():
        assert "city" in json.loads(each)


async def test_calls_of_a_stream_are_those_of_the_whole_answer(target: Target) -> None:
    whole = [json.loads(call["function"]["arguments"]) for call in (await called(target))["message"]["tool_calls"]]
    arguments: dict[int, str] = {}
    for piece in await streamed(target):
        arguments[piece["index"]] = arguments.get(piece["index"], "") + piece["function"].get("arguments", "")
    assert [json.loads(each) for each in arguments.values()] == whole


@pytest.mark.parametrize("stream", [False, True])
async def test_only_the_first_call_counts_without_parallel_calls(target: Target, stream: bool) -> None:
    if stream:
        assert {piece["index"] for piece in await streamed(target, parallel_tool_calls=False)} == {0}
    else:
        assert len((await called(target, parallel_tool_calls=False))["message"]["tool_calls"]) == 1


@pytest.mark.parametrize("cut", [1, 3, 8, 15, 25])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_is_cut_says_length(target: Target, cut: int, stream: bool) -> None:
    body = target.tools(max_tokens=cut, ignore_eos=True)
    if stream:
        chunks = await target.chunks(CHAT, body)
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    else:
        assert (await target.ok(CHAT, body))["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": None}, {"tools": [], "tool_choice": None}], ids=named)
async def test_no_tools_are_the_same_as_an_empty_list(target: Target, fields: dict[str, Any]) -> None:
    found = await target.ok(CHAT, target.chat(**fields))
    alone = await target.ok(CHAT, target.chat())
    assert found["choices"][0]["message"]["content"] == alone["choices"][0]["message"]["content"]
    assert found["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]


async def test_no_call_is_made_where_none_is_wanted(target: Target) -> None:
    found = (await target.ok(CHAT, target.tools(tool_choice="none")))["choices"][0]
    assert not found["message"].get("tool_calls")
    assert found["finish_reason"] in ("stop", "length")


async def test_results_go_back_into_the_conversation(target: Target, sdk: openai.AsyncOpenAI) -> None:
    body = target.tools()
    message = (await sdk.chat.completions.create(**body)).choices[0].message
    if not message.tool_calls and not target.complete:
        pytest.skip("the model called no tool")
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls or ()]
    for said in (message.model_dump(), message.model_dump(exclude_none=True)):
        await target.ok(CHAT, {**body, "messages": [*body["messages"], said, *results]})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 5}}]}, "tools[0]"),
        ({"tools": "x"}, "tools"),
    ],
    ids=named,
)
async def test_a_wrong_tool_is_refused_and_named(target: Target, fields: dict[str, Any], param: str) -> None:
    refused(await target.post(CHAT, target.tools(**fields)), 400, param)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_has_both_names(target: Target, name: str, stream: bool) -> None:
    if stream:
        chunks = await target.chunks(CHAT, target.tools())
        said = "".join(choice["delta"].get(name) or "" for chunk in chunks for choice in chunk["choices"])
    else:
        said = (await target.ok(CHAT, target.tools()))["choices"][0]["message"].get(name) or ""
    if not said and not target.complete:
        pytest.skip("the model did not reason, or the server does not split it off")
    assert said


async def test_tokens_of_reasoning_are_counted(target: Target) -> None:
    found = await target.ok(CHAT, target.tools())
    if not found["choices"][0]["message"].get("reasoning") and not target.complete:
        pytest.skip("the model did not reason")
    assert 0 < found["usage"]["completion_tokens_details"]["reasoning_tokens"] <= found["usage"]["completion_tokens"]
