"""Anthropic's own SDK against a real router, with simulated engines."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import anthropic
import pytest
import pytest_asyncio
from anthropic.types import MessageParam

from tests.router.http.test_openai import HTTP, base, post
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK: list[MessageParam] = [{"role": "user", "content": "What is Penstock?"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), router=HTTP, sim={"max_model_len": 256}) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=base(stack), api_key="none", max_retries=0) as found:
        yield found


async def test_a_conversation_is_answered(client: anthropic.AsyncAnthropic) -> None:
    message = await client.messages.create(model="demo", max_tokens=9, messages=ASK, system="Be brief.")
    assert message.id.startswith("msg_")
    assert message.content[0].type == "text"
    assert message.content[0].text
    assert ("max_tokens", 9) == (message.stop_reason, message.usage.output_tokens)
    assert message._request_id


async def test_a_stream_has_the_same_message(client: anthropic.AsyncAnthropic) -> None:
    whole = await client.messages.create(model="demo", max_tokens=20, messages=ASK, extra_body={"temperature": 0})
    async with client.messages.stream(
        model="demo", max_tokens=20, messages=ASK, extra_body={"temperature": 0}
    ) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        streamed = await stream.get_final_message()
    assert streamed.content[0].type == "text"
    assert text == whole.content[0].text  # type: ignore[union-attr]
    assert (whole.stop_reason, whole.usage.output_tokens) == (streamed.stop_reason, streamed.usage.output_tokens)


async def test_tokens_are_counted_as_they_are_charged(client: anthropic.AsyncAnthropic) -> None:
    counted = await client.messages.count_tokens(model="demo", messages=ASK)
    message = await client.messages.create(model="demo", max_tokens=1, messages=ASK)
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


async def test_errors_have_anthropics_form(client: anthropic.AsyncAnthropic, stack: Stack) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await client.messages.create(model="nope", max_tokens=1, messages=ASK)
    assert {
        "type": "error",
        "error": {"type": "not_found_error", "message": unknown.value.body["error"]["message"]},  # type: ignore[index]
        "request_id": unknown.value.request_id,
    } == unknown.value.body
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        await client.messages.create(model="demo", max_tokens=1, messages=ASK, extra_body={"temperature": 9})
    status, body, _headers = await post(stack, "/v1/messages", data=b"{", headers={"Content-Type": "application/json"})
    assert (400, "error", "invalid_request_error") == (status, body["type"], body["error"]["type"])


@pytest.mark.parametrize(
    ("words", "max_tokens", "told"),
    [
        (1, 5000, r"input length and `max_tokens` exceed context limit: \d+ \+ 5000 > 256"),
        (600, 1, r"prompt is too long: \d+ tokens > 255 maximum"),
    ],
)
async def test_a_context_that_is_full_is_told_in_the_words_that_agents_know(
    client: anthropic.AsyncAnthropic, words: int, max_tokens: int, told: str
) -> None:
    """Agents shorten the conversation, or ask for less, when they read these."""
    with pytest.raises(anthropic.BadRequestError, match=told):
        await client.messages.create(
            model="demo", max_tokens=max_tokens, messages=[{"role": "user", "content": "word " * words}]
        )


LONG = "x" * 200


def use(**fields: object) -> dict[str, object]:
    return {"type": "tool_use", "id": "a", "name": "f", "input": {}, **fields}


def result(call_id: str = "a") -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "1"}


@pytest.mark.parametrize("system", [None, "Be brief."])
async def test_an_error_names_the_block_of_the_body(stack: Stack, system: str | None) -> None:
    text = {"type": "text", "text": "Hi"}
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [text, use(), use(id="b", name="")]},
        {"role": "user", "content": [result(), text, result(LONG), text]},
        {"role": "assistant", "content": [use(id=LONG), text]},
        {"role": "user", "content": [text]},
    ]
    nested: dict[str, object] = {}
    for _ in range(100):
        nested = {"a": nested}
    turns.append({"role": "assistant", "content": [text, use(input=nested)]})
    body = {"model": "demo", "max_tokens": 2, "messages": turns, "system": system}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        status, found, _ = await post(stack, path, json=body)
        assert status == 400
        assert [each.split(": ")[0] for each in found["error"]["message"].split("; ")] == [
            "messages[1].content[2].name",
            "messages[2].content[2].tool_use_id",
            "messages[3].content[0].id",
            "messages[5].content[1].input",
        ]


async def test_an_error_names_the_tool_of_the_body(stack: Stack) -> None:
    tool = {"name": "look", "input_schema": {"type": "object"}}
    for tools, field in (
        ([tool, tool], "tools[1].name"),
        ([tool, {**tool, "name": ""}], "tools[1].name"),
        ([{**tool, "input_schema": {"$ref": "nope"}, "strict": True}], "tools[0].input_schema"),
    ):
        body = {"model": "demo", "max_tokens": 2, "messages": ASK, "tools": tools}
        status, found, _ = await post(stack, "/v1/messages", json=body)
        assert (400, field) == (status, found["error"]["message"].split(": ")[0])


async def test_an_error_about_models_has_the_form_of_its_client(client: anthropic.AsyncAnthropic, stack: Stack) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await client.models.retrieve("nope")
    assert unknown.value.type == "not_found_error"
    assert unknown.value.request_id
    assert unknown.value.body["request_id"] == unknown.value.request_id  # type: ignore[index]
    async with aiohttp.ClientSession() as session, session.get(f"{base(stack)}/v1/models/nope") as reply:
        assert (await reply.json())["error"]["code"] == "model_not_found"
        assert "request-id" not in reply.headers
