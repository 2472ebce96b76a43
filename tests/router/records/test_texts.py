"""Prompts in spans, as OpenTelemetry's conventions have them."""

from __future__ import annotations

import json
from typing import Any

from penstock.models import ToolCall
from router.records.texts import INPUT, texts_of
from router.validation.values import ChatPrompt, Image, Message, TokenPrompt


def shown(most: int, *messages: Message) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(texts_of(ChatPrompt(messages), (), most)[INPUT])
    return found


def test_calls_of_tools_and_their_results_are_parts_of_their_own() -> None:
    call = ToolCall("c1", "get_weather", '{"city": "Oslo"}')
    found = shown(
        1_000,
        Message("assistant", "", tool_calls=(call,), reasoning="I look"),
        Message("tool", "rain", tool_call_id="c1"),
    )
    assert found == [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "I look"},
                {"type": "tool_call", "id": "c1", "name": "get_weather", "arguments": '{"city": "Oslo"}'},
            ],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "rain"}]},
    ]


def test_images_are_told_by_their_sizes() -> None:
    parts = ("What is this?", Image(b"secret", 112, 84))
    assert [
        {
            "role": "user",
            "parts": [
                {"type": "image", "content": "112 x 84 pixels"},
                {"type": "text", "content": "What is this?"},
            ],
        }
    ] == shown(100, Message("user", "What is this?", parts))


def test_the_newest_messages_are_shown_and_the_last_one_that_has_room_is_cut() -> None:
    found = shown(6, Message("system", "rules"), Message("user", "first"), Message("user", "last"))
    assert [("user", "fi…"), ("user", "last")] == [(each["role"], each["parts"][0]["content"]) for each in found]


def test_token_ids_have_no_text() -> None:
    assert {} == texts_of(TokenPrompt((1, 2)), (), 100)
