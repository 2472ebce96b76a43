"""Tools in namespaces: the model sees flat names, and clients their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from penstock.values.objects import BodyError, Fields
from router.http.responses.body import read_body
from router.http.responses.lines import read_response_line
from tests.router.http.responses.conftest import (
    ANSWER,
    HTTP,
    TOOL,
    call,
    pool_with_tools,
    results_of,
    sdk,
    written_again,
)
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOWN: Any = {"type": "namespace", "name": "town", "description": "Towns.", "tools": [TOOL, {**TOOL, "name": "go"}]}
SHOUT: Any = {"type": "function", "name": "shout", "description": "Shouts."}
ASK: dict[str, Any] = {"model": "demo", "input": "Rain?", "temperature": 0, "max_output_tokens": 400}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    pool = pool_with_tools(folder)
    pool["sim"]["answer"] = ANSWER.replace('"look"', '"town__look"')
    async with running_stack(folder, router=HTTP, pools={"demo": pool}) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk(stack) as found:
        yield found


def called(response: Any) -> list[tuple[str | None, str]]:
    return [(item.namespace, item.name) for item in response.output if item.type == "function_call"]


@pytest.mark.parametrize("background", [False, True])
async def test_a_call_names_the_namespace_of_its_tool(client: openai.AsyncOpenAI, background: bool) -> None:
    stream = await client.responses.create(**ASK, tools=[SHOUT, TOWN], stream=True, background=background)
    events = [event async for event in stream]
    last = events[-1]
    assert "response.completed" == last.type
    assert [("town", "look")] * 2 == called(last.response)
    assert TOWN == last.response.tools[1].to_dict()
    assert events[-1] == [each async for each in await client.responses.retrieve(last.response.id, stream=True)][-1]
    named = {event.name for event in events if event.type == "response.function_call_arguments.done"}
    assert {"look"} == named


async def test_a_conversation_goes_on_after_such_a_call(client: openai.AsyncOpenAI) -> None:
    """Stored, or written again by the client: the model is shown the same."""
    first = await client.responses.create(**ASK, tools=[TOWN])
    outputs = results_of(first)
    more = {**ASK, "input": outputs, "tools": [TOWN]}
    second = await client.responses.create(**more, previous_response_id=first.id)
    by_hand = written_again(ASK["input"], first, outputs)
    same = await client.responses.create(**{**more, "input": by_hand})
    flat = [{**each, "name": "town__look", "namespace": None} if "namespace" in each else each for each in by_hand]
    shown = await client.responses.create(**{**more, "input": flat})
    assert 2 == sum("namespace" in each for each in by_hand)
    counts = {each.usage.input_tokens for each in (second, same, shown) if each.usage is not None}
    assert 1 == len(counts)


async def test_what_is_left_out_of_a_namespace_is_named(stack: Stack) -> None:
    space = {**TOWN, "colour": 1, "tools": [{**TOOL, "defer_loading": True}]}
    body = {**ASK, "max_output_tokens": 2, "tools": [space]}
    status, _, headers = await call(stack, "POST", "/v1/responses", json=body)
    assert 200 == status
    assert "tools[0].description, tools[0].colour, tools[0].tools[0].defer_loading" == headers["x-penstock-ignored"]


@pytest.mark.parametrize(
    ("tools", "place"),
    [
        ([{**TOWN, "tools": []}], "tools[0].tools"),
        ([{**TOWN, "name": ""}], "tools[0].name"),
        ([SHOUT, {**TOWN, "tools": [TOOL, {"type": "custom", "name": "x"}]}], "tools[1].tools[1].type"),
        ([SHOUT, {**TOWN, "tools": [TOWN]}], "tools[1].tools[0].type"),
        ([SHOUT, {**TOWN, "tools": [TOOL, {**TOOL, "parameters": 5}]}], "tools[1].tools[1].parameters"),
        ([TOWN, {**TOOL, "name": "town__go"}], "tools[1].name"),
        ([TOWN, {**TOOL, "name": 5}], "tools[1].name"),
    ],
)
async def test_a_wrong_tool_is_named_by_its_place(stack: Stack, tools: list[Any], place: str) -> None:
    status, error, _ = await call(stack, "POST", "/v1/responses", json={**ASK, "tools": tools})
    assert (400, place) == (status, error["error"]["param"])


@pytest.mark.parametrize(
    ("name", "shown"),
    [("go", "town__go"), ("town__go", "town__go"), ("shout", "shout"), ("nope", "nope"), ("look", "look")],
)
async def test_a_choice_names_a_tool_by_either_name(name: str, shown: str) -> None:
    """`look` is in two namespaces, so it names neither."""
    other = {**TOWN, "name": "sea", "tools": [TOOL]}
    choice = {"type": "function", "name": name}
    asked = read_body({**ASK, "tools": [SHOUT, TOWN, other], "tool_choice": choice})
    assert {"type": "function", "function": {"name": shown}} == asked.chat["tool_choice"]
    assert choice == asked.shown["tool_choice"]


async def test_a_batch_takes_no_namespaces() -> None:
    with pytest.raises(BodyError, match=r'tools\[0\]\.type: must be "function" in a batch'):
        read_response_line(Fields("body", {**ASK, "tools": [TOWN]}, ignore_unknown=True))
