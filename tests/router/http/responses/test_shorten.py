"""Conversations that are too long for their model, with and without `truncation: "auto"`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import openai
import pytest

from router.http.responses.conversation import Placed
from router.http.responses.shorten import (
    ConversationBounds,
    beginnings,
    bounded,
    from_beginning,
    room,
    shortened,
    surely_fits,
)

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


def test_a_call_without_output_keeps_no_turn() -> None:
    stopped = placed(message("user"), called("x"), message("user"), *steps("b", "d", "e"))
    assert beginnings(stopped) == [2, 5, 7]
    beside = placed(message("user"), called("x"), *steps("b", "d", "e"))
    assert beginnings(beside) == [4, 6]


def test_a_message_between_a_call_and_its_output_does_not_part_them() -> None:
    items = placed(
        message("user"), called("x"), message("user", "wait"), output("x"), message("assistant"), message("user")
    )
    assert beginnings(items) == [5]


def steps(*names: str) -> list[dict[str, Any]]:
    return [item for name in names for item in (called(name), output(name))]


def test_a_call_is_never_parted_from_its_output() -> None:
    source = random.Random(3)
    parted = 0
    for _ in range(300):
        items: list[dict[str, Any]] = []
        waiting: list[str] = []
        for number in range(source.randint(1, 30)):
            match source.randint(0, 4):
                case 0:
                    items.append(message(source.choice(("user", "developer")), str(number)))
                case 1:
                    items.append(message("assistant", str(number)))
                case 2 | 3:
                    waiting.append(str(number))
                    items.append(called(str(number)))
                case _ if waiting:
                    # In any order, and some never.
                    items.append(output(waiting.pop(source.randrange(len(waiting)))))
        whole = placed(*items)
        answered = {item["call_id"] for item in items if item["type"] == "function_call_output"}
        for start in beginnings(whole):
            kept = [item for _, item in from_beginning(whole, start)]
            calls = {item["call_id"] for item in kept if item["type"] == "function_call"}
            outputs = {item["call_id"] for item in kept if item["type"] == "function_call_output"}
            assert outputs == calls & answered
            users = [item for item in items if item.get("role") == "user"]
            assert not users or users[-1] in kept
            parted += len(kept) < len(items)
    assert parted > 300


class Counter:
    """A tokenizer with a template: some tokens of its own, some for each message, and scripts that differ."""

    def __init__(self, fixed: int = 0) -> None:
        self.fixed = fixed
        self.counts = 0

    async def __call__(self, part: Sequence[Placed]) -> int:
        self.counts += 1
        return self.of(part)

    def of(self, part: Sequence[Placed]) -> int:
        texts = [item["content"][0]["text"] for _, item in part]
        return self.fixed + sum(8 + (len(text) // 5 if text.isascii() else len(text)) for text in texts)


@pytest.mark.parametrize("script", ["one", "two", "mixed"])
@pytest.mark.parametrize("fixed", [0, 5_000, 90_000])
async def test_hardly_more_goes_than_has_to_and_few_counts_are_needed(script: str, fixed: int) -> None:
    source = random.Random(5)
    for _ in range(40):
        turns = source.randint(2, 300)

        def text(number: int, turns: int = turns) -> str:
            foreign = {"one": False, "two": number > turns // 2, "mixed": source.random() < 0.3}[script]
            return ("слово " if foreign else "word ") * source.randint(1, 100)

        items, count = placed(*(message("user", text(number)) for number in range(turns))), Counter(fixed)
        most = fixed + source.randint(600, 12_000)
        kept = await shortened(items, most, count)
        gone = len(items) - len(kept)
        assert list(kept) == items[gone:]
        assert count.of(kept) <= most
        assert count.counts <= 7
        # Nine tenths of the room are taken, or one more turn is too long; less where texts differ by much.
        least = count.of(items[-1:])
        part = (count.of(kept) - least) / max(1, most - least)
        assert part >= (0.9 if script == "one" else 0.7) or gone == 0 or count.of(items[gone - 1 :]) > most


async def test_what_is_too_long_by_itself_keeps_its_last_turn() -> None:
    items = placed(message("system"), message("user"), message("assistant"), message("user", "last"))
    for most in (10, 0, -5):
        count = Counter(1_000)
        assert await shortened(items, most, count) == [items[0], items[3]]
        assert count.counts == 2
        assert await shortened(items[:1], most, Counter(1_000)) == items[:1]
    assert await shortened(items, 2_000, Counter(1_000)) is items


def bounds(**wanted: int) -> ConversationBounds:
    most: dict[str, int] = {"context": 1_000_000, "items": 5_000, "text_bytes": 1 << 30, "bytes": 1 << 30, "images": 64}
    return ConversationBounds(**{**most, **wanted})


def test_what_is_certainly_too_much_goes_uncounted() -> None:
    items = placed(*(message("user", "word " * 20) for _ in range(2_000)))
    assert bounded(items, bounds()) is items
    assert items[-1_023:] == bounded(items, bounds(items=1_024))
    assert items[-200:] == bounded(items, bounds(text_bytes=20_000))
    assert items[-200:] == bounded(items, bounds(bytes=20_000))
    assert items[-160:] == bounded(items, bounds(context=1_000))
    assert items[-1:] == bounded(items, bounds(context=1))
    alone = placed(message("assistant", "word " * 5_000))
    assert bounded(alone, bounds(context=10)) is alone


def test_images_count_by_their_number_and_not_as_text() -> None:
    shows = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 978}
    items = placed(*({**message("user", ""), "content": [shows, shows]} for _ in range(20)))
    assert bounded(items, bounds(text_bytes=10, context=10)) is items
    assert items[-3:] == bounded(items, bounds(images=7))
    assert items[-4:] == bounded(items, bounds(bytes=9_999))
    assert bounded(items, bounds(images=0)) is items


@pytest.mark.parametrize(("size", "messages", "fits"), [(1_000, 3, True), (12_000, 3, False), (1_000, 160, False)])
def test_a_short_conversation_is_not_counted(size: int, messages: int, fits: bool) -> None:
    assert surely_fits(size, messages, 12_288) is fits


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
async def test_more_messages_than_a_request_may_have_are_shortened_too(client: openai.AsyncOpenAI) -> None:
    many: list[Any] = [{"role": "user", "content": "a"}] * 1_100
    found = await client.responses.create(model="demo", input=many, truncation="auto", max_output_tokens=8)
    assert found.usage is not None
    assert CONTEXT // 2 < found.usage.input_tokens <= CONTEXT - 8


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
