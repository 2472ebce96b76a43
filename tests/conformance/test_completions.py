"""Continued texts."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types import Completion

from tests.conformance.target import MARKS, TEXT, Target, named, refused

pytestmark = MARKS


async def test_an_answer_has_openais_form(target: Target) -> None:
    found = Completion.model_validate_json((await target.post(TEXT, target.text())).body, strict=True)
    assert (found.object, found.model) == ("text_completion", target.model)


async def test_the_default_length_is_sixteen_tokens(target: Target) -> None:
    body = target.text(ignore_eos=True)
    del body["max_tokens"]
    assert (await target.ok(TEXT, body))["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [("Once", 1), (["Once", "Twice"], 2), ([5, 6, 7], 1), ([[5, 6, 7], [8, 9]], 2), (["Once"], 1)],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_form_of_prompt_is_taken(target: Target, prompt: Any, choices: int, stream: bool) -> None:
    body = target.text(prompt=prompt)
    if stream:
        said = await target.chunks(TEXT, body)
        assert {choice["index"] for chunk in said for choice in chunk["choices"]} == {*range(choices)}
    else:
        found = (await target.ok(TEXT, body))["choices"]
        assert [choice["index"] for choice in found] == [*range(choices)]


async def test_several_prompts_are_answered_each_as_alone(target: Target) -> None:
    both = (await target.ok(TEXT, target.text(prompt=["Once", "Twice"])))["choices"]
    for prompt, choice in zip(("Once", "Twice"), both, strict=True):
        assert choice["text"] == (await target.ok(TEXT, target.text(prompt=prompt)))["choices"][0]["text"]


async def test_a_stream_says_what_the_whole_answer_says(target: Target) -> None:
    whole = (await target.ok(TEXT, target.text()))["choices"][0]
    chunks = await target.chunks(TEXT, target.text())
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


async def test_usage_comes_in_a_chunk_without_choices(target: Target) -> None:
    chunks = await target.chunks(TEXT, target.text(stream_options={"include_usage": True}))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    assert all(chunk["choices"] for chunk in chunks[:-1])


async def test_a_stop_string_is_not_in_the_text(target: Target) -> None:
    whole = (await target.ok(TEXT, target.text(max_tokens=24)))["choices"][0]["text"]
    stop = whole[len(whole) // 2 :][:4]
    found = (await target.ok(TEXT, target.text(max_tokens=24, stop=stop)))["choices"][0]
    assert (found["text"], found["finish_reason"]) == (whole[: whole.index(stop)], "stop")


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_log_probabilities_are_parallel_lists(target: Target, count: int) -> None:
    found = (await target.ok(TEXT, target.text(logprobs=count)))["choices"][0]["logprobs"]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["text_offset"]) == 8
    assert all(value <= 0 for value in found["token_logprobs"])
    assert count == 0 or all(len(each) >= count for each in found["top_logprobs"])
    assert found["text_offset"] == sorted(found["text_offset"])


async def test_echo_gives_back_the_prompt(target: Target) -> None:
    body = target.text(echo=True)
    alone = (await target.ok(TEXT, target.text()))["choices"][0]["text"]
    assert (await target.ok(TEXT, body))["choices"][0]["text"] == body["prompt"] + alone


async def test_echo_scores_the_prompt(target: Target) -> None:
    body = target.text(prompt=[5, 6, 7, 8], echo=True, logprobs=1, max_tokens=1)
    found = (await target.ok(TEXT, body))["choices"][0]["logprobs"]
    assert len(found["token_logprobs"]) == 5
    assert found["token_logprobs"][0] is None
    assert all(value <= 0 for value in found["token_logprobs"][1:])


async def test_the_sdk_reads_a_stream(target: Target, lax: openai.AsyncOpenAI) -> None:
    stream = await lax.completions.create(**target.text(), stream=True)
    assert [chunk async for chunk in stream]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""] * 0 + [{}]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": 99}, "logprobs"),
        ({"temperature": "hot"}, "temperature"),
        ({"stream_options": {}}, "stream_options"),
    ],
    ids=named,
)
async def test_a_wrong_field_is_refused_and_named(target: Target, fields: dict[str, Any], param: str) -> None:
    refused(await target.post(TEXT, {**target.text(), **fields}), 400, param)
