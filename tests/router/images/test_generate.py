"""Images through a whole cluster with simulated engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from tests.router.inference.test_bad_input import failure
from tests.support.pictures import BLUE, RED, huge, picture
from tests.support.stack import Stack, collect, running_stack
from tests.support.stack import text_of as streamed_text

pytestmark = pytest.mark.asyncio(loop_scope="module")

TILES = 12
"""Tokens of an image of 112 x 84 pixels."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), replicas=2) as running:
        yield running


def part(data: bytes) -> types.ContentPart:
    return types.ContentPart(image=types.Image(data=data))


def chat(*parts: bytes | str, role: str = "user") -> types.Prompt:
    made = [types.ContentPart(text=each) if isinstance(each, str) else part(each) for each in parts]
    return types.Prompt(chat=types.ChatPrompt(messages=[types.ChatMessage(role=role, parts=made)]))


def ask(*parts: bytes | str, **sampling: Any) -> api.GenerateRequest:
    params = types.SamplingParams(**{"temperature": 0, "max_tokens": 8, "ignore_eos": True, **sampling})
    return api.GenerateRequest(model="demo", prompt=chat(*parts), sampling=params)


def view(color: tuple[int, int, int] = RED, kind: str = "PNG") -> bytes:
    return picture(112, 84, color, kind)


async def text_of(stack: Stack, *parts: bytes | str) -> str:
    return str((await stack.inference().Generate(ask(*parts))).choices[0].text)


async def test_the_answer_depends_on_what_an_image_shows(stack: Stack) -> None:
    red = await text_of(stack, "What is this?", view())
    assert red == await text_of(stack, "What is this?", view())
    assert red != await text_of(stack, "What is this?", view(BLUE))


async def test_the_tokens_of_images_count_as_those_of_the_prompt(stack: Stack) -> None:
    async def tokens(*parts: bytes | str) -> int:
        usage = (await stack.inference().Generate(ask("What is this?", *parts))).usage
        counted = await stack.inference().CountTokens(
            api.CountTokensRequest(model="demo", prompt=chat("What is this?", *parts))
        )
        assert usage.prompt_tokens == counted.tokens == len(counted.token_ids)
        return int(counted.tokens)

    one, two = await tokens(view()), await tokens(view(), view(BLUE))
    larger = await tokens(picture(224, 84))
    assert larger - one == TILES
    assert two - one > TILES


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
async def test_every_format_is_taken(stack: Stack, kind: str) -> None:
    assert await text_of(stack, "What is this?", view(kind=kind))


async def test_streams_and_single_answers_are_the_same(stack: Stack) -> None:
    whole = await stack.inference().Generate(ask("Tell me", view(), max_tokens=60))
    call = stack.inference().StreamGenerate(api.StreamGenerateRequest(generate=ask("Tell me", view(), max_tokens=60)))
    assert whole.choices[0].text == streamed_text(await collect(call))


async def test_several_choices_see_the_same_images(stack: Stack) -> None:
    answer = await stack.inference().Generate(ask("What is this?", view(), n=3))
    assert 3 == len(answer.choices)
    assert 1 == len({choice.text for choice in answer.choices})


BAD: list[tuple[str, Callable[[], types.Prompt], str, str]] = [
    ("no image", lambda: chat(b"GIF89 and no more"), "parts[0].image.data", "no PNG, JPEG, WebP or GIF file"),
    ("nothing", lambda: chat("Hi", b""), "parts[1].image.data", "the 0 bytes are no PNG"),
    ("a bomb", lambda: chat(huge(60_000, 60_000)), "parts[0].image.data", "64000000 pixels"),
    ("an answer", lambda: chat("Hi", view(), role="assistant"), "parts[1].image", "role is 'assistant'"),
]


@pytest.mark.parametrize(("prompt", "field", "words"), [each[1:] for each in BAD], ids=[each[0] for each in BAD])
async def test_a_wrong_image_is_named(stack: Stack, prompt: Callable[[], types.Prompt], field: str, words: str) -> None:
    call = stack.inference().Generate(api.GenerateRequest(model="demo", prompt=prompt()))
    code, reason, violations = await failure(call)
    assert (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST") == (code, reason)
    assert f"prompt.chat.messages[0].{field}" == violations[0][0]
    assert words in violations[0][1]


async def test_more_images_than_fit_are_refused(stack: Stack) -> None:
    call = stack.inference().Generate(ask(*[view()] * 65))
    _code, _reason, violations = await failure(call)
    assert [("prompt.chat.messages", "must have at most 64 images, got 65")] == violations


async def test_a_file_that_breaks_off_is_the_clients_fault(stack: Stack) -> None:
    whole = view(kind="JPEG")
    code, _reason, _violations = await failure(stack.inference().Generate(ask("Hi", whole[: len(whole) // 2])))
    assert grpc.StatusCode.INVALID_ARGUMENT is code


async def test_an_image_that_leaves_no_room_is_refused_with_the_numbers(stack: Stack) -> None:
    # One of 5600 x 5600 pixels has 40,000 tokens.
    call = stack.inference().Generate(ask("Hi", picture(5_600, 5_600)))
    _code, _reason, violations = await failure(call)
    assert "prompt" == violations[0][0]
    assert "40" in violations[0][1]


async def test_models_say_how_many_images_they_take(stack: Stack) -> None:
    found = await stack.inference().GetModel(api.GetModelRequest(model="demo"))
    assert 64 == found.model.capabilities.max_images
