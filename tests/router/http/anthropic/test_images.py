"""Images in the bodies of Anthropic's API."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from penstock.v1 import types_pb2 as types
from penstock.values.objects import BodyError
from router.http.anthropic.bodies import AskedMessage, read_messages

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
TEXT = base64.b64encode(PNG).decode()
SOURCE = {"type": "base64", "media_type": "image/png", "data": TEXT}
IMAGE = {"type": "image", "source": SOURCE}
ONE = types.ContentPart(image=types.Image(data=PNG))


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def said(words: str) -> types.ContentPart:
    return types.ContentPart(text=words)


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def result(name: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": list(content)}


def read(*messages: dict[str, Any], **fields: Any) -> AskedMessage:
    return read_messages({"model": "demo", "max_tokens": 5, "messages": list(messages), **fields}, {})


CALLS = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": name, "name": "look", "input": {}} for name in ("a", "b")],
}


def test_an_image_is_a_part_between_texts() -> None:
    (message,) = read(user(text("One:"), IMAGE, text("Two:"), IMAGE)).generate.prompt.chat.messages
    assert types.ChatMessage(role="user", parts=[said("One:"), ONE, said("Two:"), ONE]) == message


def test_messages_that_follow_each_other_are_one_turn_with_its_images() -> None:
    (message,) = read(user(IMAGE), {"role": "user", "content": "Which?"}).generate.prompt.chat.messages
    assert types.ChatMessage(role="user", parts=[ONE, said("Which?")]) == message


def test_the_result_of_a_tool_has_images() -> None:
    asked = read(user(text("Look.")), CALLS, user(result("a", text("Here:"), IMAGE), result("b", text("x"), text("y"))))
    _, _, shown, plain = asked.generate.prompt.chat.messages
    assert types.ChatMessage(role="tool", tool_call_id="a", parts=[said("Here:"), ONE]) == shown
    assert types.ChatMessage(role="tool", tool_call_id="b", content="x\ny") == plain


def test_hints_beside_an_image_are_taken_and_unknown_fields_named() -> None:
    cached = {**IMAGE, "cache_control": {"type": "ephemeral"}, "source": {**SOURCE, "extra": 1}}
    assert ("messages[0].content[0].source.extra",) == read(user(cached)).ignored


@pytest.mark.parametrize(
    ("block", "field", "problem"),
    [
        ({"type": "image"}, ".source", 'must be {"type": "base64", "media_type": "image/png", "data": ...}, got null'),
        ({"type": "image", "source": "x"}, ".source", 'must be an object, got "x"'),
        (
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
            ".source.type",
            'must be base64, got "url"; Penstock fetches nothing: send the image\'s content',
        ),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, ".source.type", 'must be base64, got "file"'),
        (
            {"type": "image", "source": {**SOURCE, "media_type": "image/tiff"}},
            ".source.media_type",
            'must be an image of type image/png, image/jpeg, image/webp, image/gif, got "image/tiff"',
        ),
        ({"type": "image", "source": {"type": "base64", "data": TEXT}}, ".source.media_type", "must be an image"),
        ({"type": "image", "source": {**SOURCE, "data": "?" * 999_999}}, ".source.data", "must be base64: "),
        ({"type": "image", "source": {**SOURCE, "data": ""}}, ".source.data", "must not be empty"),
        ({"type": "image", "source": {**SOURCE, "data": None}}, ".source.data", "must be text in base64, got null"),
        ({"type": "document", "source": SOURCE}, "", 'must be a block of type text or image, got "document"'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("inside", [False, True], ids=["message", "result"])
def test_what_is_no_image_is_refused_with_its_place(block: Any, field: str, problem: str, inside: bool) -> None:
    with pytest.raises(BodyError) as caught:
        read(user(text("Look.")), CALLS, user(result("a"), result("b", text("x"), block) if inside else block))
    place = "messages[2].content[1].content[1]" if inside else "messages[2].content[1]"
    assert f"{place}{field}" == caught.value.field
    assert caught.value.problem.startswith(problem)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("message", [{"role": "assistant", "content": [IMAGE]}, {"role": "system", "content": [IMAGE]}])
def test_only_the_user_shows_images(message: dict[str, Any]) -> None:
    with pytest.raises(BodyError, match=r'messages\[1\]\.content\[0\]: must be a block of type text, got "image"'):
        read(user(text("Hi")), message)
    with pytest.raises(BodyError, match=r'system\[0\]: must be a block of type text, got "image"'):
        read(user(text("Hi")), system=[IMAGE])


@pytest.mark.parametrize("system", ["", "Be brief."])
def test_what_the_cluster_refuses_has_the_place_of_its_block(system: str) -> None:
    written = read(
        user(text("Look.")),
        CALLS,
        user(result("a", text("x"), IMAGE), result("b", text("y")), text("And"), IMAGE),
        user(text("or"), IMAGE),
        {"role": "assistant", "content": "Yes."},
        user(IMAGE),
        system=system,
    ).places.written  # fmt: skip

    def place(message: int, part: int, rest: str = ".image") -> str:
        return written(f"prompt.chat.messages[{message + bool(system)}].parts[{part}]{rest}")

    assert "messages[2].content[0].content[1]" == place(2, 1)
    assert "messages[2].content[3]" == place(4, 1)
    assert "messages[3].content[1]" == place(4, 3, ".image.data")
    assert "messages[5].content[0]" == place(6, 0)
    assert "messages[2].content[1].tool_use_id" == written(f"prompt.chat.messages[{3 + bool(system)}].tool_call_id")
    assert "messages[1].content[1].input" == written(
        f"prompt.chat.messages[{1 + bool(system)}].tool_calls[1].arguments"
    )
