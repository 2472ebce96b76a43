"""Images in chats, responses and Anthropic's messages."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import anthropic
import openai
import pytest

from tests.conformance.target import CHAT, MARKS, Target, refused

pytestmark = MARKS
QUESTION = "What color is this?"


@pytest.fixture(autouse=True)
def _offered(target: Target) -> None:
    if not target.image_model:
        pytest.skip("no model that takes images is named (--image-model)")


def png(color: tuple[int, int, int], size: int = 64) -> bytes:
    """Return the file of an image of one color."""
    row = b"\0" + bytes(color) * size
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(row * size)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


RED, BLUE = png((255, 0, 0)), png((0, 0, 255))


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{text_of(data)}"


def content(*images: bytes) -> list[Any]:
    shown = [{"type": "image_url", "image_url": {"url": url(each)}} for each in images]
    return [{"type": "text", "text": QUESTION}, *shown]


def ask(target: Target, parts: Any, **more: Any) -> dict[str, Any]:
    fields = {"messages": [{"role": "user", "content": parts}], "max_tokens": 12, "temperature": 0}
    return {"model": target.image_model, **fields, **more}


def message_of(*images: bytes) -> Any:
    shown = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": text_of(each)}}
        for each in images
    ]
    return {"role": "user", "content": [*shown, {"type": "text", "text": QUESTION}]}


def item_of(*images: bytes) -> Any:
    shown = [{"type": "input_image", "image_url": url(each), "detail": "auto"} for each in images]
    return {"role": "user", "content": [{"type": "input_text", "text": QUESTION}, *shown]}


async def test_an_image_has_tokens(target: Target) -> None:
    without, one, two = [
        (await target.ok(CHAT, ask(target, content(*images))))["usage"]["prompt_tokens"]
        for images in ((), (RED,), (RED, BLUE))
    ]
    assert without < one < two


async def test_the_same_image_has_the_same_answer_whole_and_in_chunks(target: Target) -> None:
    body = ask(target, content(RED))
    first, again = [(await target.ok(CHAT, body))["choices"][0]["message"]["content"] for _ in range(2)]
    assert first == again
    chunks = await target.chunks(CHAT, body)
    told = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert first == "".join(told)


@pytest.mark.parametrize("detail", ["auto", "low", "high", None])
async def test_a_detail_is_taken(target: Target, detail: str | None) -> None:
    part = {"type": "image_url", "image_url": {"url": url(RED), "detail": detail}}
    await target.ok(CHAT, ask(target, [*content(), part]))


async def test_the_sdk_sends_images(target: Target, sdk: openai.AsyncOpenAI) -> None:
    found = await sdk.chat.completions.create(
        model=target.image_model,
        messages=[{"role": "user", "content": content(RED)}],
        max_completion_tokens=8,
    )
    assert found.usage is not None
    assert found.usage.prompt_tokens > 4


@pytest.mark.parametrize(
    "wrong",
    ["data:image/png;base64,", "data:image/png;base64,?", url(b"no image"), "data:text/plain;base64,SGk=", "", None],
    ids=["empty", "no base64", "no image", "text", "no text", "null"],
)  # fmt: skip
async def test_what_is_no_image_is_refused_and_named(target: Target, wrong: Any) -> None:
    part = {"type": "image_url", "image_url": {"url": wrong}}
    refused(await target.post(CHAT, ask(target, [*content(), part])), 400, "messages[0].content[1]")


async def test_a_response_sees_images(target: Target, sdk: openai.AsyncOpenAI) -> None:
    async def tokens(*images: bytes) -> int:
        found = await sdk.responses.create(
            model=target.image_model, input=[item_of(*images)], max_output_tokens=16, store=False
        )
        assert found.usage is not None
        return found.usage.input_tokens

    assert await tokens() < await tokens(RED) < await tokens(RED, BLUE)


async def test_a_message_sees_images(target: Target, claude: anthropic.AsyncAnthropic) -> None:
    async def tokens(*images: bytes) -> int:
        message = await claude.messages.create(model=target.image_model, messages=[message_of(*images)], max_tokens=8)
        usage = message.usage
        return usage.input_tokens + (usage.cache_read_input_tokens or 0)

    assert await tokens() < await tokens(RED) < await tokens(RED, BLUE)


async def test_a_count_has_the_tokens_of_images(target: Target, claude: anthropic.AsyncAnthropic) -> None:
    async def tokens(*images: bytes) -> int:
        counted = await claude.messages.count_tokens(model=target.image_model, messages=[message_of(*images)])
        return counted.input_tokens

    assert await tokens() < await tokens(RED)
