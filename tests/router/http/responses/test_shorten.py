"""Conversations that are too long for their model, with and without `truncation: "auto"`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import openai
import pytest

from router.http.responses.conversation import Placed
from router.http.responses.shorten import beginnings, from_beginning, room, shortened

CONTEXT = 512
"""Tokens of the simulated engines' context."""


def message(role: str, text: str = "") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def called(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}


def output(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "found"}


def placed(*items: dict[str, Any]) -> list[Placed]:
    return [(f"input[{index}]", item) for index, item in enumerate(items)]


def test_a_conversation_may_begin_at_each_question_and_at_each_step_of_an_agent() -> None:
    thought = {"type": "reasoning", "content": []}
    items = placed(
        message("developer"),
        message("user", "first"),
        called("a"),
        output("a"),
        message("assistant"),
        message("user", "second"),
        *(thought, called("b"), called("c"), output("b"), output("c")),
        *(thought, called("d"), output("d")),
        message("assistant"),
    )
    assert beginnings(items) == [1, 5, 11, 14]
    kept = [[index for index, each in enumerate(items) if each in from_beginning(items, s)] for s in (1, 5, 11, 14)]
    assert kept[0] == list(range(15))
    assert kept[1] == [0, *range(5, 15)]
    assert kept[2] == [0, 5, 11, 12, 13, 14]
    assert kept[3] == [0, 5, 14]


def test_a_call_is_never_parted_from_its_output() -> None:
    source = random.Random(3)
    for _ in range(200):
        items: list[dict[str, Any]] = []
        for number in range(source.randint(1, 12)):
            match source.randint(0, 3):
                case 0:
                    items.append(message("user", str(number)))
                case 1:
                    items.append(message("assistant", str(number)))
                case _:
                    names = [f"{number}-{n}" for n in range(source.randint(1, 3))]
                    items += [*map(called, names), *map(output, source.sample(names, len(names)))]
        whole = placed(*items)
        for start in beginnings(whole):
            kept = [item for _, item in from_beginning(whole, start)]
            calls = {item["call_id"] for item in kept if item["type"] == "function_call"}
            assert calls == {item["call_id"] for item in kept if item["type"] == "function_call_output"}
            users = [item for item in items if item.get("role") == "user"]
            assert not users or users[-1] in kept


async def test_no_more_goes_than_has_to_and_few_counts_are_needed() -> None:
    source = random.Random(5)
    for _ in range(50):
        texts = ["word " * source.randint(1, 400) for _ in range(source.randint(2, 60))]
        items = placed(*(message("user", text) for text in texts))
        counts = 0

        async def count(part: Sequence[Placed]) -> int:
            nonlocal counts
            counts += 1
            return tokens(part)

        most = source.randint(50, 6_000)
        kept = await shortened(items, tokens(items), most, count)
        gone = len(items) - len(kept)
        assert list(kept) == items[gone:]
        assert tokens(kept) <= most or len(kept) == 1
        assert gone == 0 or tokens(items[max(0, gone - 2) :]) > most
        assert counts <= 4


def tokens(part: Sequence[Placed]) -> int:
    """Count as a tokenizer and a template do: five characters a token, and some for each message."""
    return sum(8 + len(item["content"][0]["text"]) // 5 for _, item in part)


async def test_what_is_too_long_by_itself_keeps_its_last_turn() -> None:
    items = placed(message("system"), message("user"), message("assistant"), message("user", "last"))

    async def count(part: Sequence[Placed]) -> int:
        return 1_000

    assert await shortened(items, 1_000, 10, count) == [items[0], items[3]]
    assert await shortened(items, 1_000, 0, count) == [items[0], items[3]]
    assert await shortened(items[:1], 1_000, 10, count) == items[:1]
    assert await shortened(items, 1_000, 1_000, count) is items


@pytest.mark.parametrize(("max_tokens", "wanted"), [(0, 384), (12, 500), (512, 0)])
def test_an_answer_has_room(max_tokens: int, wanted: int) -> None:
    assert room(CONTEXT, max_tokens) == wanted


# --- a router ---------------------------------------------------------------------------------------------------------


def turns(count: int) -> list[Any]:
    """Return turns of some 30 tokens each."""
    found: list[Any] = []
    for number in range(count):
        question = f"Question {number}: what do replicas, routers and queues do?"
        found += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": f"Answer {number}: they serve."},
        ]
    return found


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", ["whole", "streamed", "background"])
async def test_the_oldest_turns_of_a_long_conversation_are_left_out(client: openai.AsyncOpenAI, way: str) -> None:
    conversation = [*turns(60), {"role": "user", "content": "And now?"}]
    asked: dict[str, Any] = {"model": "demo", "instructions": "Be brief.", "max_output_tokens": 20, "temperature": 0}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(**asked, input=conversation)
    assert caught.value.code == "context_length_exceeded"
    shortening: dict[str, Any] = {**asked, "input": conversation, "truncation": "auto"}
    match way:
        case "whole":
            found = await client.responses.create(**shortening)
        case "streamed":
            events = [event async for event in await client.responses.create(**shortening, stream=True)]
            assert events[-1].type in ("response.completed", "response.incomplete")
            found = events[-1].response
        case _:
            begun = await client.responses.create(**shortening, background=True)
            _ = [event async for event in await client.responses.retrieve(begun.id, stream=True)]
            found = await client.responses.retrieve(begun.id)
    assert found.truncation == "auto"
    assert found.usage is not None
    assert CONTEXT - 20 - 80 < found.usage.input_tokens <= CONTEXT - 20
    items = [item async for item in client.responses.input_items.list(found.id, order="asc", limit=100)]
    kept = [item.content[0].text for item in items if item.type == "message"]  # type: ignore[union-attr]
    assert kept == [each["content"] for each in conversation[-len(kept) :]]
    assert kept[0].startswith("Question")
    counted = await client.responses.input_tokens.count(
        model="demo", instructions="Be brief.", input=conversation[-len(kept) :]
    )
    assert counted.input_tokens == found.usage.input_tokens


@pytest.mark.asyncio(loop_scope="module")
async def test_a_chain_of_responses_goes_on_for_ever(client: openai.AsyncOpenAI) -> None:
    previous = None
    for number in range(12):
        found = await client.responses.create(
            model="demo",
            input=f"Question {number}: " + "what do replicas, routers and queues do? " * 6,
            previous_response_id=previous,
            truncation="auto",
            max_output_tokens=16,
        )
        assert found.usage is not None
        assert found.usage.input_tokens <= CONTEXT - 16
        previous = found.id


@pytest.mark.asyncio(loop_scope="module")
async def test_a_message_that_is_too_long_by_itself_is_an_error(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(
            model="demo", input=[*turns(3), {"role": "user", "content": "word " * 900}], truncation="auto"
        )
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match='got "never"') as caught:
        await client.responses.create(model="demo", input="hi", truncation="never")  # type: ignore[call-overload]
    assert caught.value.param == "truncation"
