"""Whole answers to conversations."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.conformance.target import ASK, CHAT, MARKS, Target, named, refused

pytestmark = MARKS


async def test_an_answer_has_openais_form(target: Target) -> None:
    reply = await target.post(CHAT, target.chat())
    found = ChatCompletion.model_validate_json(reply.body, strict=True)
    assert found.id
    assert found.object == "chat.completion"
    assert found.model == target.model
    assert found.choices[0].message.role == "assistant"
    assert reply.headers["content-type"].startswith("application/json")


async def test_the_sdk_reads_an_answer_strictly(target: Target, sdk: openai.AsyncOpenAI) -> None:
    found = await sdk.chat.completions.create(**target.chat())
    assert found.choices[0].message.content is not None
    assert found._request_id


async def test_usage_adds_up(target: Target) -> None:
    usage = (await target.ok(CHAT, target.chat(ignore_eos=True)))["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8


async def test_a_cut_answer_says_length(target: Target) -> None:
    assert (await target.ok(CHAT, target.chat(max_tokens=2)))["choices"][0]["finish_reason"] == "length"


async def test_max_completion_tokens_wins(target: Target) -> None:
    body = target.chat(max_tokens=9, max_completion_tokens=3, ignore_eos=True)
    assert (await target.ok(CHAT, body))["usage"]["completion_tokens"] == 3


async def test_several_choices_are_numbered(target: Target) -> None:
    found = await target.ok(CHAT, target.chat(n=3, temperature=1))
    assert [each["index"] for each in found["choices"]] == [0, 1, 2]
    assert all(each["finish_reason"] for each in found["choices"])


async def test_several_choices_are_given_at_temperature_zero(target: Target) -> None:
    assert len((await target.ok(CHAT, target.chat(n=2)))["choices"]) == 2


async def test_a_seed_makes_an_answer_repeatable(target: Target) -> None:
    body = target.chat(seed=7, temperature=1, max_tokens=12)
    one, two = [(await target.ok(CHAT, body))["choices"][0]["message"]["content"] for _ in range(2)]
    assert one == two


@pytest.mark.parametrize("as_list", [False, True])
async def test_a_stop_string_ends_the_answer_and_is_not_in_it(target: Target, as_list: bool) -> None:
    whole = (await target.ok(CHAT, target.chat(max_tokens=24)))["choices"][0]["message"]["content"]
    stop = whole[len(whole) // 2 :][:4]
    found = await target.ok(CHAT, target.chat(max_tokens=24, stop=["\x00never", stop] if as_list else stop))
    assert found["choices"][0]["message"]["content"] == whole[: whole.index(stop)]
    assert found["choices"][0]["finish_reason"] == "stop"


async def test_logit_bias_has_keys_of_text(target: Target) -> None:
    await target.shaped(CHAT, target.chat(logit_bias={"5": 1, "6": -100}), "logit_bias")


@pytest.mark.parametrize("top", [None, 0, 3])
async def test_log_probabilities_have_text_and_bytes(target: Target, top: int | None) -> None:
    body = target.chat(logprobs=True, **({} if top is None else {"top_logprobs": top}))
    content = (await target.ok(CHAT, body))["choices"][0]["logprobs"]["content"]
    assert len(content) == 8
    for each in content:
        assert isinstance(each["token"], str)
        assert each["logprob"] <= 0
        assert each["bytes"] is None or all(0 <= byte < 256 for byte in each["bytes"])
        assert len(each["top_logprobs"]) == (top or 0)


async def test_there_are_no_log_probabilities_unless_asked(target: Target) -> None:
    assert (await target.ok(CHAT, target.chat()))["choices"][0].get("logprobs") is None


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "Be brief."}, *ASK],
        [{"role": "developer", "content": "Be brief."}, *ASK],
        [{"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": " this?"}]}],
        [{"role": "user", "name": "Ada", "content": "What is this?"}],
        [*ASK, {"role": "assistant", "content": "A pipe.", "reasoning": "Easy."}, *ASK],
        [*ASK, {"role": "assistant", "content": "A pipe.", "reasoning_content": "Easy."}, *ASK],
        [*ASK, {"role": "assistant", "content": [{"type": "text", "text": "A pipe."}]}, *ASK],
    ],
    ids=["system", "developer", "parts", "name", "reasoning", "reasoning_content", "assistant_parts"],
)
async def test_a_form_of_message_is_taken(target: Target, messages: list[Any]) -> None:
    await target.ok(CHAT, target.chat(messages=messages))


async def test_a_text_is_the_same_as_its_part(target: Target) -> None:
    parts = [{"type": "text", "text": ASK[0]["content"]}]
    one = await target.ok(CHAT, target.chat())
    two = await target.ok(CHAT, target.chat(messages=[{"role": "user", "content": parts}]))
    assert one["choices"][0]["message"]["content"] == two["choices"][0]["message"]["content"]
    assert one["usage"]["prompt_tokens"] == two["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "form",
    [
        {"type": "text"},
        {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": {
            "type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"],
            "additionalProperties": False}}},
    ],
    ids=["text", "json_schema"],
)  # fmt: skip
async def test_a_response_format_is_taken(target: Target, form: dict[str, Any]) -> None:
    body = target.chat(response_format=form, max_tokens=200)
    if form["type"] == "text":
        await target.ok(CHAT, body)
    else:
        found = await target.shaped(CHAT, body, "response_format")
        choice = found["choices"][0]
        if choice["finish_reason"] == "length":
            pytest.skip("the model did not end in 200 tokens; white space between the parts of JSON is free")
        assert set(json.loads(choice["message"]["content"])) == {"city"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 9}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": "x"}, "top_p"),
        ({"top_p": 2}, "top_p"),
        ({"n": 0}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "x"}, "max_tokens"),
        ({"frequency_penalty": 9}, "frequency_penalty"),
        ({"presence_penalty": -9}, "presence_penalty"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "messages[0].content[0]"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
        ({"logit_bias": {"5": 200}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"response_format": {"type": "poem"}}, "response_format"),
        ({"stop": 5}, "stop"),
        ({"seed": "x"}, "seed"),
        ({"stream": "x"}, "stream"),
        ({"model": 5}, "model"),
    ],
    ids=named,
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_wrong_field_is_refused_and_named(
    target: Target, fields: dict[str, Any], param: str, stream: bool
) -> None:
    if stream and ("stream" in fields or "stream_options" in fields):
        fields = {"stream": 7}
        param = "stream"
    refused(await target.post(CHAT, {**target.chat(stream=stream), **fields}), 400, param)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long_has_its_own_code(target: Target, stream: bool) -> None:
    ask = [{"role": "user", "content": "word " * 60_000}]
    error = refused(await target.post(CHAT, target.chat(messages=ask, stream=stream)), 400)
    assert error["code"] == "context_length_exceeded"
