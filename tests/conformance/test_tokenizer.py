"""Tokenizers, as vLLM's server offers them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.target import ASK, CHAT, MARKS, Target, refused

pytestmark = MARKS
ENDPOINT = ("POST", "/tokenize")


async def test_a_text_comes_back(target: Target) -> None:
    text = "Water runs, and 日本."
    found = await target.ok("/tokenize", {"model": target.model, "prompt": text, "add_special_tokens": False})
    assert found["count"] == len(found["tokens"])
    assert found["max_model_len"] > 0
    again = await target.ok("/detokenize", {"model": target.model, "tokens": found["tokens"]})
    assert again["prompt"] == text


async def test_a_conversation_is_counted_as_it_is_charged(target: Target) -> None:
    counted = (await target.ok("/tokenize", {"model": target.model, "messages": ASK}))["count"]
    assert counted == (await target.ok(CHAT, target.chat()))["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "body", [{}, {"prompt": 5}, {"messages": "x"}, {"messages": []}, {"prompt": "x", "add_special_tokens": "maybe"}]
)
async def test_a_wrong_text_is_refused(target: Target, body: dict[str, Any]) -> None:
    refused(await target.post("/tokenize", {"model": target.model, **body}), 400)


@pytest.mark.parametrize("tokens", [None, "x", [-1], [10**9], ["x"], [1.5]])
async def test_wrong_tokens_are_refused(target: Target, tokens: Any) -> None:
    refused(await target.post("/detokenize", {"model": target.model, "tokens": tokens}), 400, "tokens")


async def test_an_unknown_model_is_not_found(target: Target) -> None:
    refused(await target.post("/tokenize", {"model": "no-such-model", "prompt": "x"}), 404)


async def test_answers_have_a_request_id(target: Target) -> None:
    assert (await target.post("/tokenize", {"model": target.model, "prompt": "x"})).headers["x-request-id"]
