"""Images in the bodies of chats, and of requests for their tokens."""

from __future__ import annotations

import base64

import pytest

from penstock.v1 import types_pb2 as types
from penstock.values.objects import BodyError
from router.http.bodies import count_of, read_request
from router.http.tokenizer import read_tokenize

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
ASKED = {
    "model": "demo",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image_url", "image_url": {"url": URL, "detail": "high"}},
            ],
        }
    ],
}
MESSAGE = types.ChatMessage(
    role="user",
    parts=[types.ContentPart(text="What is it?"), types.ContentPart(image=types.Image(data=PNG))],
)


def test_a_chat_has_its_image_and_nothing_is_left_out() -> None:
    asked = read_request(ASKED, {}, chat=True)
    assert [MESSAGE] == list(asked.generate.prompt.chat.messages)
    assert () == asked.ignored
    assert asked.generate.prompt == count_of(asked.generate).prompt


def test_the_tokenizers_route_has_it_too() -> None:
    count, ignored = read_tokenize(ASKED, "demo")
    assert ([MESSAGE], ()) == (list(count.prompt.chat.messages), ignored)


@pytest.mark.parametrize("url", ["https://example.com/cat.png", "//example.com/cat.png", "file:///etc/passwd"])
def test_nothing_is_fetched(url: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": url}}]
    with pytest.raises(BodyError, match="Penstock fetches nothing: send the image's content as a data URL") as caught:
        read_request({**ASKED, "messages": [{"role": "user", "content": content}]}, {}, chat=True)
    assert "messages[0].content[0].image_url.url" == caught.value.field
