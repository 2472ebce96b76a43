"""Images in the bodies of the Responses API."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from cluster.errors import InvalidRequestError
from penstock.v1 import types_pb2 as types
from penstock.values.objects import BodyError, Fields
from penstock.values.requests import prompt_to_proto
from router.http.bodies import read_request
from router.http.responses.body import read_body
from router.http.responses.items import Item, chat_messages, images_of, said
from router.http.responses.lines import read_response_line
from router.http.responses.places import Places
from router.http.responses.stored import StoredRequest

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
IMAGE = {"type": "input_image", "image_url": URL}
ONE = types.ContentPart(image=types.Image(data=PNG))


def said_part(words: str) -> types.ContentPart:
    return types.ContentPart(text=words)


def text(words: str) -> dict[str, str]:
    return {"type": "input_text", "text": words}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


CALL = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}


def output(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "a", "output": list(parts)}


def items_of(*items: dict[str, Any]) -> list[tuple[str, Item]]:
    read = read_body({"model": "demo", "input": list(items)}).items
    return [(f"input[{index}]", item) for index, item in enumerate(read)]


def asked(*items: dict[str, Any], instructions: str = "") -> tuple[list[types.ChatMessage], Places]:
    """Return the chat of an input, and the places in it."""
    messages, places = chat_messages(instructions, items_of(*items))
    chat = read_request({"model": "demo", "messages": messages}, {}, chat=True)
    return list(chat.generate.prompt.chat.messages), Places(places, ())


def test_an_image_is_a_part_of_its_message() -> None:
    (message,), _ = asked(user(text("What is it?"), IMAGE))
    assert types.ChatMessage(role="user", parts=[said_part("What is it?"), ONE]) == message


def test_texts_alone_stay_one_text() -> None:
    (message,), _ = asked(user(text("a"), text("b")))
    assert types.ChatMessage(role="user", content="a\nb") == message


def test_the_output_of_a_call_has_images() -> None:
    messages, _ = asked(user(text("Look.")), CALL, output(text("Here:"), IMAGE))
    assert types.ChatMessage(role="tool", tool_call_id="a", parts=[said_part("Here:"), ONE]) == messages[-1]


@pytest.mark.parametrize(
    ("part", "kept"),
    [
        (IMAGE, {"type": "input_image", "detail": "auto", "image_url": URL}),
        ({**IMAGE, "detail": "high", "file_id": None}, {"type": "input_image", "detail": "high", "image_url": URL}),
        (
            {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
            {"type": "input_image", "detail": "auto", "image_url": URL},
        ),
    ],
)
def test_an_item_keeps_its_image_as_the_api_has_it(part: dict[str, Any], kept: dict[str, Any]) -> None:
    ((_, item),) = items_of(user(text("Hi"), part))
    assert [{"type": "input_text", "text": "Hi"}, kept] == item["content"]
    assert ("Hi", [URL]) == (said(item), images_of(item))


def test_what_is_stored_has_the_image() -> None:
    items = [item for _, item in items_of(user(IMAGE))]
    stored = StoredRequest(b"", {"id": "resp_1"}, items, "digest")
    assert items == StoredRequest.unpack(stored.packed()).items


@pytest.mark.parametrize(
    ("part", "field", "problem"),
    [
        ({"type": "input_image"}, ".image_url", "must be a data URL with the image's content"),
        ({"type": "input_image", "image_url": 7}, ".image_url", "must be a data URL with the image's content"),
        (
            {"type": "input_image", "image_url": "https://example.com/a.png"},
            ".image_url",
            'must be a data URL, got "https://example.com/a.png"; Penstock fetches nothing',
        ),
        ({"type": "input_image", "file_id": "file-1"}, ".file_id", 'is not supported, got "file-1"; Penstock fetches'),
        ({"type": "input_image", "image_url": "data:image/bmp;base64,AA=="}, ".image_url", "must be an image of type"),
        ({"type": "input_image", "image_url": "data:image/png;base64,A"}, ".image_url", "must be base64: "),
        ({"type": "input_image", "image_url": "data:image/png;base64,"}, ".image_url", "must not be empty"),
        ({"type": "input_file", "file_id": "f"}, "", 'must be text or an image, got a part of type "input_file"'),
        ({"type": "input_audio"}, "", 'must be text or an image, got a part of type "input_audio"'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("inside", [False, True], ids=["message", "output"])
def test_what_is_no_image_is_refused_with_its_place(part: Any, field: str, problem: str, inside: bool) -> None:
    place = "input[2].output[1]" if inside else "input[2].content[1]"
    items = [user(text("a")), CALL, output(text("b"), part) if inside else user(text("b"), part)]
    for read in (_whole, _line):
        with pytest.raises(BodyError) as caught:
            read(items)
        assert caught.value.field.removeprefix("body.") == f"{place}{field}"
        assert caught.value.problem.startswith(problem)


def _whole(items: list[dict[str, Any]]) -> None:
    messages, places = chat_messages("Be brief.", items_of(*items))
    try:
        read_request({"model": "demo", "messages": messages}, {}, chat=True)
    except BodyError as error:
        raise Places(places, ()).body_error(error) from None


def _line(items: list[dict[str, Any]]) -> None:
    read_response_line(Fields("body", {"model": "demo", "input": items, "instructions": "Be brief."}, True))


@pytest.mark.parametrize("role", ["assistant", "reasoning"])
def test_an_answer_has_no_images(role: str) -> None:
    item = {"type": "reasoning", "content": [IMAGE]} if role == "reasoning" else {"role": role, "content": [IMAGE]}
    with pytest.raises(BodyError, match=r'input\[0\]\.content\[0\]: must be text, got a part of type "input_image"'):
        items_of(item)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("prompt.chat.messages[1].parts[1].image", "input[0].content[1]"),
        ("prompt.chat.messages[1].parts[1].image.data", "input[0].content[1]"),
        ("prompt.chat.messages[3].parts[0].image", "input[2].output[0]"),
        ("prompt.chat.messages[3].content", "input[2].output"),
        ("prompt.chat.messages[3].tool_call_id", "input[2].call_id"),
        ("prompt.chat.messages", "input"),
    ],
)
def test_what_the_cluster_refuses_has_the_place_of_its_part(field: str, expected: str) -> None:
    _, places = asked(user(text("Look:"), IMAGE), CALL, output(IMAGE), instructions="Be brief.")
    refused = places.invalid(InvalidRequestError.of(field, "is wrong")).refused
    assert [expected] == [each.field for each in refused.violations]


def test_a_line_of_a_batch_has_images() -> None:
    line = read_response_line(Fields("body", {"model": "demo", "input": [user(text("Hi"), IMAGE)]}, True))
    (message,) = prompt_to_proto(line.prompt).chat.messages
    assert types.ChatMessage(role="user", parts=[said_part("Hi"), ONE]) == message
