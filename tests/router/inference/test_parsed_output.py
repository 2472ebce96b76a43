"""Reasoning and tool calls, from the engine's text to the client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from penstock.client import (
    AsyncClient,
    Completion,
    Delta,
    Finished,
    FinishReason,
    GenerateOptions,
    Message,
    Sampling,
)
from penstock.v1 import types_pb2 as types
from tests.support.stack import Stack, request, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

REASONING = "The user greets me, so I greet back."
TEXT = "\nHello! a < b, and 1 < 2.\n"
ANSWER = f"<think>{REASONING}</think>{TEXT}"
QUESTION = [Message("user", "Hi")]
LONG = Sampling(temperature=0.0, max_tokens=500)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), routers=2, sim={"answer": ANSWER}) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as client:
        yield client


def parts(completion: Completion, index: int = 0) -> tuple[str, str, FinishReason]:
    choice = completion.choices[index]
    return choice.reasoning, choice.text, choice.finish_reason


async def test_reasoning_has_a_channel_of_its_own(stack: Stack, client: AsyncClient) -> None:
    deltas, last = [], None
    async for event in client.stream("demo", QUESTION, LONG):
        if isinstance(event, Delta):
            deltas.append(event)
        last = event
    chat = types.ChatPrompt(messages=[types.ChatMessage(role="user", content="Hi")])
    unary = request(max_tokens=500)
    unary.prompt.chat.CopyFrom(chat)
    whole = Completion.from_proto(await stack.inference().Generate(unary))

    assert (REASONING, TEXT, FinishReason.STOP) == parts(whole)
    assert REASONING == "".join(delta.reasoning for delta in deltas)
    assert TEXT == "".join(delta.text for delta in deltas)
    assert 0 < whole.usage.reasoning_tokens < whole.usage.output_tokens
    assert isinstance(last, Finished)
    assert whole.usage.reasoning_tokens == last.usage.reasoning_tokens


async def test_all_choices_are_parsed(client: AsyncClient) -> None:
    whole = await client.generate("demo", QUESTION, Sampling(max_tokens=500, n=3))

    assert [(REASONING, TEXT, FinishReason.STOP)] * 3 == [parts(whole, index) for index in range(3)]


async def test_output_of_a_text_is_not_parsed(client: AsyncClient) -> None:
    whole = await client.generate("demo", "Hi", LONG)

    assert ("", ANSWER, FinishReason.STOP) == parts(whole)
    assert 0 == whole.usage.reasoning_tokens


async def test_the_beginning_of_a_tag_comes_at_the_end(client: AsyncClient) -> None:
    """Nothing is lost of an answer that is cut in the middle of a tag."""
    tokens = (await client.generate("demo", QUESTION, LONG)).usage.output_tokens
    for most in range(1, tokens):
        sampling = Sampling(temperature=0.0, max_tokens=most)
        plain = (await client.generate("demo", "Hi", sampling)).text
        reasoning, text, reason = parts(await client.generate("demo", QUESTION, sampling))

        assert FinishReason.LENGTH is reason
        tags = [tag for tag in ("<think>", "</think>") if tag in plain]
        assert plain == "".join([*tags[:1], reasoning, *tags[1:], text])


async def test_the_result_of_a_key_is_parsed_and_can_be_continued(client: AsyncClient) -> None:
    options = GenerateOptions(idempotency_key="parsed")
    first = await client.generate("demo", QUESTION, LONG, options)
    again = await client.generate("demo", QUESTION, LONG, options)

    assert (REASONING, TEXT, FinishReason.STOP) == parts(first) == parts(again)
