"""Tokenizers, as vLLM's server offers them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.target import ASK, CHAT, MARKS, TOOLS, Target, refused

pytestmark = MARKS
ENDPOINT = ("POST", "/tokenize")


async def test_a_text_comes_back(target: Target) -> None:
    text = "Water runs, and 日本."
    found = await target.ok("/tokenize", {"model": target.model, "prompt": text, "add_special_tokens": False})
    assert found["count"] == len(found["tokens"])
    assert found["max_model_len"] > 0
    again = await target.ok("/detokenize", {"model": target.model, "tokens": found["tokens"]})
    assert again["prompt"] == text


async def test_names_of_tokens_come_where_they_are_asked_for(target: Target) -> None:
    body = {"model": target.model, "prompt": "Water runs."}
    found = await target.ok("/tokenize", {**body, "return_token_strs": True})
    assert len(found["token_strs"]) == found["count"]
    assert all(isinstance(each, str) for each in found["token_strs"])
    assert (await target.ok("/tokenize", body)).get("token_strs") is None


async def test_an_empty_text_has_its_special_tokens_alone(target: Target) -> None:
    body = {"model": target.model, "prompt": ""}
    assert (await target.ok("/tokenize", {**body, "add_special_tokens": False}))["tokens"] == []
    assert (await target.ok("/detokenize", {"model": target.model, "tokens": []}))["prompt"] == ""


async def test_the_beginning_of_an_answer_is_left_out_or_that_is_refused(target: Target) -> None:
    body = {"model": target.model, "messages": ASK}
    whole = (await target.ok("/tokenize", body))["count"]
    reply = await target.post("/tokenize", {**body, "add_generation_prompt": False})
    if reply.status == 200:
        assert 0 < reply.json["count"] < whole
    else:
        refused(reply, 400, "add_generation_prompt")


async def test_tools_are_counted(target: Target) -> None:
    body = {"model": target.tool_model, "messages": ASK}
    alone, more = [(await target.ok("/tokenize", {**body, **each}))["count"] for each in ({}, {"tools": TOOLS})]
    assert more > alone
    said = await target.ok(CHAT, target.tools(messages=ASK))
    assert said["usage"]["prompt_tokens"] == more


async def test_the_tokenizer_is_described(target: Target) -> None:
    reply = await target.call("GET", f"/tokenizer_info?model={target.model}")
    if reply.status == 404 and not target.complete:
        pytest.skip("the server has no /tokenizer_info")
    assert reply.status == 200, reply.body
    assert {"tokenizer_class", "chat_template"} <= set(reply.json)


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
