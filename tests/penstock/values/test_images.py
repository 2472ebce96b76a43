"""Images in messages: every form of them becomes the same request, and what can't be read is named."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest

from penstock import Image, Message, read_line
from penstock.v1 import types_pb2
from penstock.values.messages.message import message_to_proto, read_message
from penstock.values.objects import BodyError, Fields
from penstock.values.requests import prompt_to_proto

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
TEXT = base64.b64encode(PNG).decode()
URL = f"data:image/png;base64,{TEXT}"
ONE = types_pb2.ContentPart(image=types_pb2.Image(data=PNG))
ASKED = types_pb2.ChatMessage(role="user", parts=[types_pb2.ContentPart(text="What is it?"), ONE])
QUESTION = {"type": "text", "text": "What is it?"}
FORMS = (
    {"type": "image", "data": PNG},
    {"type": "image_url", "image_url": {"url": URL}},
    {"type": "image_url", "image_url": {"url": URL, "detail": "high"}},
    {"type": "image_url", "image_url": URL, "detail": "low"},
    {"type": "input_image", "image_url": URL, "detail": "auto", "file_id": None},
    {"type": "image_url", "image_url": {"url": f"DATA:Image/PNG;BASE64,{TEXT}"}},
    {"type": "image_url", "image_url": {"url": f"data:image/jpg;name=a.jpg;base64,{TEXT}"}},
)


def read(part: Any, *, ignore_unknown: bool = True) -> Fields:
    fields = Fields("messages[0]", {"role": "user", "content": [QUESTION, part]}, ignore_unknown)
    read_message(fields)
    return fields


@pytest.mark.parametrize("part", [Image(PNG), *FORMS])
def test_every_form_becomes_the_same_part(part: Any) -> None:
    assert ASKED == message_to_proto({"role": "user", "content": [QUESTION, part]}, "")
    assert ASKED == message_to_proto({"role": "user", "content": ["What is it?", part]}, "")


def test_a_message_has_texts_and_images_in_their_order() -> None:
    wire = message_to_proto(Message("user", (Image(PNG), "a", "b", Image(b"GIF89a"))), "")
    assert ["image", "text", "text", "image"] == [part.WhichOneof("kind") for part in wire.parts]
    assert (PNG, b"GIF89a") == (wire.parts[0].image.data, wire.parts[3].image.data)


def test_an_image_alone_is_a_part() -> None:
    wire = message_to_proto({"role": "user", "content": [FORMS[1]]}, "")
    assert ("", [ONE]) == (wire.content, list(wire.parts))


@pytest.mark.parametrize("role", ["tool", "system"])
def test_other_roles_show_images_too(role: str) -> None:
    assert [ONE] == list(message_to_proto({"role": role, "content": [FORMS[0]]}, "").parts)


def test_an_image_is_a_value_whose_content_no_log_shows() -> None:
    image = Image(PNG)
    assert "Image()" == repr(image)
    assert image == copy.deepcopy(image) != Image(b"GIF89a")


@pytest.mark.parametrize("media_type", ["png", "jpeg", "webp", "gif"])
def test_four_kinds_of_files_are_taken(media_type: str) -> None:
    read({"type": "image_url", "image_url": {"url": f"data:image/{media_type};base64,{TEXT}"}})


@pytest.mark.parametrize(
    ("part", "field", "problem"),
    [
        ({"type": "image"}, "data", "must be the bytes of a file, got null; in JSON an image is "),
        ({"type": "image", "data": ""}, "data", 'must be the bytes of a file, got ""; in JSON an image is '),
        ({"type": "image", "data": b""}, "data", "must not be empty"),
        ({"type": "image", "source": {"type": "base64", "data": TEXT}}, "data", "must be the bytes of a file, got nu"),
        ({"type": "image_url"}, "image_url", "must be a data URL with the image's content, data:image/png;base64,..."),
        ({"type": "image_url", "image_url": {}}, "image_url.url", "must be a data URL with the image's content"),
        ({"type": "image_url", "image_url": {"url": 7}}, "image_url.url", "must be a data URL with the image's conte"),
        ({"type": "image_url", "image_url": ""}, "image_url", "must be a data URL with the image's content"),
        (
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
            "image_url.url",
            'must be a data URL, got "https://example.com/a.png"; Penstock fetches nothing: send the image\'s content '
            "as a data URL, data:image/png;base64,...",
        ),
        ({"type": "input_image", "image_url": "http://[::1]/"}, "image_url", 'must be a data URL, got "http://[::1]/"'),
        ({"type": "image_url", "image_url": TEXT}, "image_url", 'must be a data URL, got "iVBORw0K'),
        ({"type": "image_url", "image_url": "file:///etc/passwd"}, "image_url", "must be a data URL, got "),
        ({"type": "input_image", "file_id": "file-1"}, "file_id", 'is not supported, got "file-1"; Penstock fetches'),
        ({"type": "image_url", "image_url": "data:image/png,abc"}, "image_url", "must be a data URL in base64"),
        ({"type": "image_url", "image_url": "data:image/png;base64"}, "image_url", "must be a data URL in base64"),
        ({"type": "image_url", "image_url": f"data:;base64,{TEXT}"}, "image_url", "must be an image of type image/png"),
        (
            {"type": "image_url", "image_url": {"url": f"data:image/svg+xml;base64,{TEXT}"}},
            "image_url.url",
            'must be an image of type image/png, image/jpeg, image/webp, image/gif, got "image/svg+xml"',
        ),
        ({"type": "image_url", "image_url": "data:image/png;base64,"}, "image_url", "must not be empty"),
        ({"type": "image_url", "image_url": "data:image/png;base64,AAA"}, "image_url", "must be base64: incorrect pad"),
        ({"type": "image_url", "image_url": "data:image/png;base64,AA\nAA"}, "image_url", "must be base64: only"),
        ({"type": "image_url", "image_url": "data:image/png;base64,Öl=="}, "image_url", "must be base64: string arg"),
        ({"type": "image_url", "image_url": [URL]}, "image_url", "must be a data URL with the image's content"),
        ({"type": "input_audio", "input_audio": {}}, "", "must be text or an image, got a part of type"),
        ({"type": "video_url", "video_url": {}}, "", "must be text or an image, got a part of type"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused_with_its_place(part: Any, field: str, problem: str) -> None:
    with pytest.raises(BodyError) as caught:
        read(part)
    where = "messages[0].content[1]"
    assert (f"{where}.{field}" if field else where) == caught.value.field
    assert caught.value.problem.startswith(problem)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/" + "a" * (1 << 20),
        "data:image/png;base64," + "a" * (1 << 20) + "!",
        "data:" + "x" * (1 << 20) + ";base64,AAAA",
        "a" * (1 << 20),
    ],
)
def test_an_error_repeats_only_the_beginning_of_a_long_value(url: str) -> None:
    with pytest.raises(BodyError) as caught:
        read({"type": "image_url", "image_url": {"url": url}})
    assert len(str(caught.value)) < 400


def test_other_fields_of_a_part_are_left_out_or_refused_as_those_of_texts() -> None:
    part = {**FORMS[1], "cache_control": {"type": "ephemeral"}, "uuid": "a"}
    fields = read(part)
    paths = ("messages[0].content[1].cache_control", "messages[0].content[1].uuid")
    assert paths == fields.leftovers()
    with pytest.raises(BodyError, match="cache_control: is not supported"):
        read(part, ignore_unknown=False)
    with pytest.raises(BodyError, match=r"image_url\.size: is not supported"):
        read({"type": "image_url", "image_url": {"url": URL, "size": 3}}, ignore_unknown=False)


def test_data_that_is_no_bytes_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"prompt\.chat\.messages\[0\]\.parts\[0\]\.image\.data: must be bytes, got 'x'"
    ):
        prompt_to_proto(Message("user", [Image("x")]))  # type: ignore[arg-type]


def test_a_line_of_a_batch_file_has_images() -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": [QUESTION, FORMS[1]]}]}
    text = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body})
    item = read_line(text, 1).item
    assert [ASKED] == list(item.to_proto().request.prompt.chat.messages)
