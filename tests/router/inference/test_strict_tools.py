"""Strict tools are judged by the engines before their request waits in line; other tools are never refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from tests.router.http.test_openai import ASK, HTTP, post
from tests.router.inference.test_bad_input import failure
from tests.support.picky_engine import WORDS, PickyEngine
from tests.support.stack import MODEL, Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

FINE, REFUSED = '{"type": "object"}', '{"type": "object", "not": {}}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> PickyEngine:
    return PickyEngine()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, engine: PickyEngine) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), router=HTTP, engine=lambda: engine) as running:
        yield running


def asked(*tools: types.Tool, names: tuple[str, ...] = (), **choice: Any) -> api.GenerateRequest:
    chat = types.ChatPrompt(messages=[types.ChatMessage(role="user", content="Hi")], tools=tools)
    return api.GenerateRequest(
        model="demo",
        prompt=types.Prompt(chat=chat),
        sampling=types.SamplingParams(max_tokens=2),
        tool_choice=types.ToolChoice(names=names, **choice),
    )


def tool(name: str, parameters: str, *, strict: bool) -> types.Tool:
    return types.Tool(name=name, parameters=parameters, strict=strict)


@pytest.mark.parametrize("names", [(), ("c",), ("c", "b")])
@pytest.mark.parametrize("mode", [types.TOOL_CHOICE_MODE_AUTO, types.TOOL_CHOICE_MODE_REQUIRED])
async def test_a_strict_tool_that_is_not_followed_is_refused_with_its_place(
    stack: Stack, names: tuple[str, ...], mode: Any
) -> None:
    tools = [tool("a", REFUSED, strict=False), tool("b", FINE, strict=True), tool("c", REFUSED, strict=True)]
    before = stack.routers[0].pools["demo"].admission.demand
    _, reason, violations = await failure(stack.inference().Generate(asked(*tools, names=names, mode=mode)))
    assert reason == "INVALID_REQUEST"
    assert violations == [
        (
            "prompt.chat.tools[2].parameters",
            f"must be a schema that the engine follows, as the tool is strict: {WORDS}",
        )
    ]
    assert not stack.routers[0].pools["demo"].active
    assert before is stack.routers[0].pools["demo"].admission.demand


async def test_tools_that_are_not_strict_are_never_refused(stack: Stack, engine: PickyEngine) -> None:
    engine.asked.clear()
    tools = [tool("x", REFUSED, strict=False), tool("y", '{"type": "objct", "$ref": "#/nowhere"}', strict=False)]
    await stack.inference().Generate(asked(*tools))
    # The engine is not even asked.
    assert not engine.asked
    await stack.inference().Generate(asked(*tools, mode=types.TOOL_CHOICE_MODE_REQUIRED))


async def test_a_strict_tool_that_may_not_be_called_is_not_judged(stack: Stack) -> None:
    tools = [tool("a", REFUSED, strict=True), tool("b", FINE, strict=True)]
    await stack.inference().Generate(asked(*tools, mode=types.TOOL_CHOICE_MODE_NONE))
    await stack.inference().Generate(asked(*tools, names=("b",), mode=types.TOOL_CHOICE_MODE_AUTO))


async def test_calls_that_can_not_be_demanded_are_refused_for_the_choice(stack: Stack) -> None:
    demanded = asked(tool("a", FINE, strict=False), mode=types.TOOL_CHOICE_MODE_REQUIRED)
    demanded.prompt.chat.template_kwargs = '{"x": 1}'
    _, _, violations = await failure(stack.inference().Generate(demanded))
    assert violations == [("tool_choice", "must be one that the engine follows: no grammar of its calls")]


@pytest.mark.parametrize(
    ("parameters", "followed"),
    [(FINE, ("f",)), (REFUSED, ()), ("", ()), ('{"properties": {}}', ()), ('{"type": "object", "$ref": "#/no"}', ())],
)
async def test_a_demanded_tool_is_held_to_its_schema_where_engines_follow_it(
    stack: Stack, engine: PickyEngine, parameters: str, followed: tuple[str, ...]
) -> None:
    tools = [tool("f", parameters, strict=False), tool("g", FINE, strict=False)]
    await stack.inference().Generate(asked(*tools, names=("f",), mode=types.TOOL_CHOICE_MODE_REQUIRED))
    assert engine.followed[-1] == followed
    # Of several, each by itself.
    await stack.inference().Generate(asked(*tools, mode=types.TOOL_CHOICE_MODE_REQUIRED))
    assert engine.followed[-1] == (*followed, "g")
    # Where the model decides, they are only shown.
    await stack.inference().Generate(asked(*tools))
    assert engine.followed[-1] == ()


@pytest.mark.engine
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")
async def test_a_real_engine_holds_a_named_function_to_its_schema(tmp_path: Path) -> None:
    """Neither is strict, and the compiler does not know all of the second schema."""
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    unknown = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name, parameters in (("weather", schema), ("list", unknown))
    ]
    pool = {"model": MODEL, "engine": "vllm", "vllm": {"dtype": "float32", "max_num_seqs": 8}}
    async with running_stack(tmp_path, router=HTTP, pools={"demo": pool}) as stack:

        async def arguments(name: str) -> str:
            body = {
                "model": "demo",
                "messages": ASK,
                "max_tokens": 60,
                "tools": tools,
                "tool_choice": {"type": "function", "function": {"name": name}},
            }
            status, found, _ = await post(stack, "/v1/chat/completions", json=body)
            assert status == 200, found
            [call] = found["choices"][0]["message"]["tool_calls"]
            assert call["function"]["name"] == name
            return str(call["function"]["arguments"])

        for _ in range(3):
            assert json.loads(await arguments("weather"))["city"] in ("Paris", "Rome")
        assert (await arguments("list")).startswith("{")


async def test_the_same_tools_are_judged_once(stack: Stack, engine: PickyEngine) -> None:
    engine.asked.clear()
    for _ in range(3):
        await stack.inference().Generate(asked(tool("once", FINE, strict=True)))
    assert engine.asked == ["once"]


STRICT: dict[str, Any] = {"name": "f", "parameters": json.loads(REFUSED), "strict": True}
ANTHROPIC = {"name": "f", "input_schema": json.loads(REFUSED), "strict": True}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (
            "/v1/chat/completions",
            {"messages": ASK, "tools": [{"type": "function", "function": STRICT}]},
            "tools[0].function.parameters",
        ),
        ("/v1/responses", {"input": "Hi", "tools": [{"type": "function", **STRICT}]}, "tools[0].parameters"),
        ("/v1/messages", {"messages": ASK, "max_tokens": 4, "tools": [ANTHROPIC]}, "tools[0].input_schema"),
    ],
)
async def test_the_place_is_that_of_the_http_body(stack: Stack, path: str, body: Any, field: str, stream: bool) -> None:
    status, found, _ = await post(stack, path, json={"model": "demo", "stream": stream, **body})
    assert status == 400
    assert field in (found["error"].get("param") or found["error"]["message"])
