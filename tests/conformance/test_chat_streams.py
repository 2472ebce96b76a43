"""Streams of conversations."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.conformance.target import CHAT, MARKS, Target

pytestmark = MARKS

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two": {"n": 2, "temperature": 1, "seed": 7},
    "usage": {"stream_options": {"include_usage": True}},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "tools": {"tool_choice": "auto"},
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def body_of(target: Target, kind: str) -> dict[str, Any]:
    return (target.tools if kind == "tools" else target.chat)(**KINDS[kind])


@each_kind
async def test_every_chunk_has_openais_form(target: Target, kind: str) -> None:
    for chunk in await target.chunks(CHAT, body_of(target, kind)):
        ChatCompletionChunk.model_validate(chunk, strict=True)


@each_kind
async def test_every_chunk_has_the_same_name_time_and_model(target: Target, kind: str) -> None:
    chunks = await target.chunks(CHAT, body_of(target, kind))
    (head,) = {(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}
    assert all(head)


@each_kind
async def test_the_first_chunk_of_a_choice_has_the_role(target: Target, kind: str) -> None:
    seen: set[int] = set()
    for chunk in await target.chunks(CHAT, body_of(target, kind)):
        for choice in chunk["choices"]:
            if choice["index"] not in seen:
                assert choice["delta"]["role"] == "assistant"
                assert choice["delta"].get("content") in ("", None)
            seen.add(choice["index"])
    assert seen == {*range(KINDS[kind].get("n", 1))}


@each_kind
async def test_a_choice_ends_once_with_a_reason(target: Target, kind: str) -> None:
    reasons: dict[int, list[Any]] = {}
    for chunk in await target.chunks(CHAT, body_of(target, kind)):
        for choice in chunk["choices"]:
            reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
    for each in reasons.values():
        assert each[-1] in ("stop", "length", "tool_calls")
        assert {*each[:-1]} <= {None}


@each_kind
async def test_usage_comes_only_when_asked_and_last(target: Target, kind: str) -> None:
    chunks = await target.chunks(CHAT, body_of(target, kind))
    if kind != "usage":
        assert all(chunk.get("usage") is None and chunk["choices"] for chunk in chunks)
        return
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    assert all(chunk.get("usage") is None and chunk["choices"] for chunk in chunks[:-1])


@each_kind
async def test_a_stream_says_what_the_whole_answer_says(target: Target, kind: str) -> None:
    body = body_of(target, kind)
    whole = await target.ok(CHAT, {name: value for name, value in body.items() if name != "stream_options"})
    texts = [""] * len(whole["choices"])
    reasons: list[Any] = [None] * len(whole["choices"])
    for chunk in await target.chunks(CHAT, body):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
            reasons[choice["index"]] = choice["finish_reason"]
    assert texts == [choice["message"]["content"] or "" for choice in whole["choices"]]
    assert reasons == [choice["finish_reason"] for choice in whole["choices"]]


async def test_usage_of_a_stream_is_that_of_the_whole_answer(target: Target) -> None:
    whole = await target.ok(CHAT, target.chat())
    last = (await target.chunks(CHAT, target.chat(stream_options={"include_usage": True})))[-1]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [last["usage"][name] for name in names] == [whole["usage"][name] for name in names]


async def test_running_usage_grows(target: Target) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [
        chunk["usage"]["completion_tokens"]
        for chunk in await target.chunks(CHAT, target.chat(ignore_eos=True, stream_options=options))
    ]
    assert counts == sorted(counts)
    assert counts[-1] == 8


async def test_log_probabilities_of_a_stream_are_those_of_the_whole_answer(target: Target) -> None:
    body = target.chat(logprobs=True, top_logprobs=2)
    whole = (await target.ok(CHAT, body))["choices"][0]["logprobs"]["content"]
    streamed = [
        each
        for chunk in await target.chunks(CHAT, body)
        for choice in chunk["choices"]
        for each in (choice.get("logprobs") or {}).get("content") or ()
    ]
    assert [each["token"] for each in streamed] == [each["token"] for each in whole]


async def test_no_stop_string_is_in_a_stream(target: Target) -> None:
    whole = (await target.ok(CHAT, target.chat(max_tokens=24)))["choices"][0]["message"]["content"]
    stop = whole[len(whole) // 2 :][:4]
    chunks = await target.chunks(CHAT, target.chat(max_tokens=24, stop=stop))
    said = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert said == whole[: whole.index(stop)]


async def test_proxies_are_told_not_to_keep_a_stream(target: Target) -> None:
    """One that compresses, such as Express' own, would tell it as a whole at its end."""
    reply = await target.post(CHAT, target.chat(stream=True))
    assert reply.headers["cache-control"].split(", ") == ["no-cache", "no-transform"]
    assert reply.headers["x-accel-buffering"] == "no"
    assert reply.headers["x-request-id"]


async def test_the_sdks_helper_collects_a_stream(target: Target, sdk: openai.AsyncOpenAI) -> None:
    body = target.chat()
    try:
        async with sdk.chat.completions.stream(**body) as stream:
            found = await stream.get_final_completion()
    except openai.LengthFinishReasonError as cut:
        found = cut.completion  # type: ignore[assignment]
    whole = await sdk.chat.completions.create(**body)
    assert found.choices[0].message.content == whole.choices[0].message.content
