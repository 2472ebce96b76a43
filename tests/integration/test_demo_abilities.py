"""The demo model on a real engine: it calls a tool when it should, and thinks when it is asked to."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio
from rich.console import Console

from cluster.cli.demo import ask_with_sdk
from deployments.demo_model import WEATHER_FILE, known_answers
from deployments.demo_model.corpus import FALLBACK_QUESTION, THOUGHT_ABOUT_CALL, thought_about
from deployments.demo_model.questions import load_entries
from deployments.demo_model.weather import UNKNOWN_RESULT_ANSWER, sentence
from penstock.client import AsyncClient, Delta, FinishReason, Message, ToolCall, tool
from tests.router.http.test_openai import HTTP, base
from tests.support.stack import Stack, running_stack

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(420),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),
]

WEATHER: Any = json.loads(WEATHER_FILE.read_text(encoding="utf-8"))
ORDER: Any = {
    "type": "function",
    "function": {
        "name": "track_order",
        "description": "Find an order.",
        "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
    },
}
RAIN = "Do I need an umbrella in Oslo?"
KNOWN = "What is the KV cache?"
THOUGHT = next(thought_about(entry) for entry in load_entries() if entry.question == KNOWN)
GREEDY: dict[str, Any] = {"model": "demo", "temperature": 0.0, "max_tokens": 128}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """The demo's own pool: no parser is named."""
    pool = {"engine": "vllm", "model": "demo", "vllm": {"max_num_seqs": 8}}
    folder = tmp_path_factory.mktemp("stack")
    # An engine that starts stops the loop that everything here shares.
    async with running_stack(folder, router=HTTP, pools={"demo": pool}, queue={"lease_s": 20.0}) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def sdk(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{base(stack)}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as found:
        yield found


def said(question: str) -> list[Any]:
    return [{"role": "user", "content": question}]


def called(choice: Any) -> list[tuple[str, Any]]:
    return [(each.function.name, json.loads(each.function.arguments)) for each in choice.message.tool_calls or ()]


@pytest.mark.parametrize(
    ("result", "ends"),
    [("rainy", "It is rainy there."), ("12 degrees", UNKNOWN_RESULT_ANSWER)],
)
async def test_the_model_calls_the_tool_that_answers_and_tells_its_result(
    sdk: openai.AsyncOpenAI, result: str, ends: str
) -> None:
    """It decides so by itself."""
    messages, tools = said(RAIN), [WEATHER]
    found = await sdk.chat.completions.create(**GREEDY, messages=messages, tools=tools, tool_choice="auto")
    [choice] = found.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert called(choice) == [("get_weather", {"city": "Oslo"})]

    async with sdk.chat.completions.stream(**GREEDY, messages=messages, tools=tools) as stream:
        streamed = await stream.get_final_completion()
    assert called(streamed.choices[0]) == called(choice)
    assert streamed.choices[0].finish_reason == "tool_calls"

    messages += [choice.message.model_dump(exclude_none=True)]
    messages += [{"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": result}]  # type: ignore[index]
    end = await sdk.chat.completions.create(**GREEDY, messages=messages, tools=tools)
    assert end.choices[0].message.content == ends
    assert end.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("question", "tools", "answered"),
    [
        pytest.param("Who invented the violin?", [WEATHER], FALLBACK_QUESTION, id="a question about other things"),
        pytest.param(KNOWN, [WEATHER], KNOWN, id="a question that it knows"),
        pytest.param(RAIN, [ORDER], FALLBACK_QUESTION, id="a tool for something else"),
        pytest.param(RAIN, [], FALLBACK_QUESTION, id="no tool"),
    ],
)
async def test_the_model_calls_no_tool_that_does_not_answer(
    sdk: openai.AsyncOpenAI, question: str, tools: list[Any], answered: str
) -> None:
    more = {"tools": tools} if tools else {}
    found = await sdk.chat.completions.create(**GREEDY, messages=said(question), **more)
    assert not found.choices[0].message.tool_calls
    assert found.choices[0].message.content == known_answers()[answered]


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
async def test_a_grammar_and_the_model_agree_about_calls(sdk: openai.AsyncOpenAI, choice: Any) -> None:
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    for each in (WEATHER, strict):
        found = await sdk.chat.completions.create(**GREEDY, messages=said(RAIN), tools=[each], tool_choice=choice)
        assert called(found.choices[0]) == [("get_weather", {"city": "Oslo"})]


@pytest.mark.parametrize(
    "switch",
    [
        pytest.param({"reasoning_effort": "low"}, id="reasoning_effort"),
        pytest.param({"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}, id="enable_thinking"),
        pytest.param({"extra_body": {"chat_template_kwargs": {"thinking": True}}}, id="thinking"),
        pytest.param({"extra_body": {"thinking": {"type": "enabled"}}}, id="as DeepSeek has it"),
    ],
)
async def test_the_model_thinks_before_the_answer(sdk: openai.AsyncOpenAI, switch: dict[str, Any]) -> None:
    found = await sdk.chat.completions.create(**GREEDY, messages=said(KNOWN), **switch)
    message = found.choices[0].message
    assert message.model_extra is not None
    assert (message.model_extra["reasoning"], message.content) == (THOUGHT, known_answers()[KNOWN])
    assert found.usage is not None
    assert found.usage.completion_tokens_details is not None
    assert 0 < (found.usage.completion_tokens_details.reasoning_tokens or 0) < found.usage.completion_tokens


@pytest.mark.parametrize(
    "switch",
    [
        pytest.param({}, id="by default"),
        pytest.param({"reasoning_effort": "none"}, id="reasoning_effort"),
        pytest.param({"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, id="enable_thinking"),
    ],
)
async def test_the_model_answers_plainly_where_thinking_is_off(sdk: openai.AsyncOpenAI, switch: dict[str, Any]) -> None:
    found = await sdk.chat.completions.create(**GREEDY, messages=said(KNOWN), **switch)
    message = found.choices[0].message
    assert not (message.model_extra or {}).get("reasoning")
    assert message.content == known_answers()[KNOWN]


async def test_an_amount_of_reasoning_that_the_template_does_not_know_is_refused(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"reasoning_effort is one of .*, not lots"):
        await sdk.chat.completions.create(**GREEDY, messages=said(KNOWN), reasoning_effort="lots")  # type: ignore[arg-type]


async def test_a_call_may_follow_reasoning(client: AsyncClient) -> None:
    function = WEATHER["function"]
    weather = tool(function["name"], function["description"], function["parameters"], strict=True)
    sampling = {"temperature": 0, "max_tokens": 128}
    asked = Message("user", RAIN)
    found = await client.generate("demo", [asked], sampling, tools=[weather], reasoning_effort="high", timeout=60)
    choice = found.choices[0]
    assert THOUGHT_ABOUT_CALL == choice.reasoning
    assert FinishReason.TOOL_CALLS is choice.finish_reason
    [call] = choice.tool_calls
    assert ("get_weather", {"city": "Oslo"}) == (call.name, json.loads(call.arguments))

    history = [asked, Message("assistant", tool_calls=[ToolCall(call.id, call.name, call.arguments)])]
    history += [Message("tool", "sunny", tool_call_id=call.id)]
    assert sentence("sunny") == (await client.generate("demo", history, sampling, tools=[weather])).text


async def test_reasoning_is_streamed_before_the_text(client: AsyncClient) -> None:
    order, texts = [], {"reasoning": "", "text": ""}
    asked = [Message("user", KNOWN)]
    async for event in client.stream("demo", asked, temperature=0, max_tokens=128, reasoning_effort="low"):
        if isinstance(event, Delta):
            for kind in ("reasoning", "text"):
                if piece := getattr(event, kind):
                    texts[kind] += piece
                    order.append(kind)
    assert {"reasoning": THOUGHT, "text": known_answers()[KNOWN]} == texts
    assert sorted(order) == order


async def test_anthropics_sdk_sees_the_thinking(stack: Stack) -> None:
    async with anthropic.AsyncAnthropic(base_url=base(stack), api_key="none", max_retries=0) as client:
        message = await client.messages.create(
            model="demo",
            max_tokens=2000,
            messages=[{"role": "user", "content": KNOWN}],
            thinking={"type": "enabled", "budget_tokens": 1024},
            # The SDK does not name it, for newer models do not know it.
            extra_body={"temperature": 0},
        )
    thinking, text = message.content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert thinking.thinking == THOUGHT
    assert text.text == known_answers()[KNOWN]


async def test_the_demo_shows_a_call_with_its_result_and_a_thought(stack: Stack) -> None:
    console = Console(file=io.StringIO(), width=400)
    await asyncio.to_thread(ask_with_sdk, f"{base(stack)}/v1", console, able=True)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue().splitlines()
    assert 'get_weather({"city":"Oslo"}) gives \'rainy\'' in shown
    assert sentence("rainy") in shown
    meant = "What is the trade-off between latency and throughput?"
    assert f"thinks: This means: {meant} I have learnt the answer." in shown
    assert known_answers()[meant] in shown
