"""Completions as OpenAI's own SDK asks for them: several prompts, echo, and log probabilities."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from router.http.completions import bodies
from tests.router.http.test_openai import HTTP, base, lines, post
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "What is Penstock?"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    router = {"http": {**HTTP["http"], "max_body_bytes": 1 << 20}, "limits": {"max_prompt_logprobs": 1_000}}
    async with running_stack(tmp_path_factory.mktemp("stack"), router=router, sim={"max_model_len": 4096}) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{base(stack)}/v1", api_key="none", max_retries=0) as found:
        yield found


async def streamed(client: openai.AsyncOpenAI, **asked: Any) -> tuple[list[dict[str, Any]], Any]:
    """Return the choices of a stream put together, and its usage."""
    found: dict[int, dict[str, Any]] = {}
    usage = None
    ids = set()
    options = {"include_usage": True}
    async for chunk in await client.completions.create(**asked, stream=True, stream_options=options):
        ids.add(chunk.id)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            whole = found.setdefault(choice.index, {"text": "", "logprobs": None, "reason": None})
            whole["text"] += choice.text
            whole["reason"] = choice.finish_reason or whole["reason"]
            if choice.logprobs is not None:
                lists = whole["logprobs"] = whole["logprobs"] or {}
                for name, values in choice.logprobs.model_dump().items():
                    lists[name] = lists.get(name, []) + values
    assert len(ids) == 1
    return [found[index] for index in sorted(found)], usage


async def ids_of(stack: Stack, text: str) -> list[int]:
    from penstock.v1 import inference_pb2 as api
    from penstock.v1 import types_pb2 as types

    asked = api.CountTokensRequest(model="demo", prompt=types.Prompt(text=text))
    return list((await stack.inference().CountTokens(asked)).token_ids)


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "max_tokens": 6, "temperature": 1, "seed": 3, "n": 2}
    prompts = [TEXT, "Once", "The wheel"]
    whole = await client.completions.create(**asked, prompt=prompts)
    assert list(range(6)) == [choice.index for choice in whole.choices]
    for number, prompt in enumerate(prompts):
        alone = await client.completions.create(**asked, prompt=prompt)
        assert [choice.text for choice in alone.choices] == [
            choice.text for choice in whole.choices[2 * number : 2 * number + 2]
        ]
    chunks, usage = await streamed(client, **asked, prompt=prompts)
    assert [choice.text for choice in whole.choices] == [choice["text"] for choice in chunks]
    assert whole.usage is not None
    assert (36, usage) == (whole.usage.completion_tokens, whole.usage)


async def test_prompts_may_be_lists_of_token_ids(client: openai.AsyncOpenAI, stack: Stack) -> None:
    ids = [await ids_of(stack, text) for text in (TEXT, "Once")]
    asked: dict[str, Any] = {"model": "demo", "max_tokens": 6, "temperature": 0}
    by_ids = await client.completions.create(**asked, prompt=ids)
    by_text = await client.completions.create(**asked, prompt=[TEXT, "Once"])
    assert [choice.text for choice in by_ids.choices] == [choice.text for choice in by_text.choices]


async def test_more_prompts_than_run_at_once_are_all_answered(client: openai.AsyncOpenAI) -> None:
    prompts = [f"Number {number}" for number in range(150)]
    whole = await client.completions.create(model="demo", prompt=prompts, max_tokens=2, temperature=0)
    assert 150 == len(whole.choices)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_is_the_prompt_with_its_lists(client: openai.AsyncOpenAI, stack: Stack, stream: bool) -> None:
    asked: dict[str, Any] = {
        "model": "demo", "prompt": TEXT, "max_tokens": 4, "n": 2, "seed": 1, "echo": True, "logprobs": 2,
    }  # fmt: skip
    if stream:
        choices, _ = await streamed(client, **asked)
    else:
        whole = await client.completions.create(**asked)
        choices = [{"text": each.text, "logprobs": each.logprobs.model_dump()} for each in whole.choices]  # type: ignore[union-attr]
    plain = await client.completions.create(**{**asked, "echo": False})
    prompt = await ids_of(stack, TEXT)
    for choice, alone in zip(choices, plain.choices, strict=True):
        lists = choice["logprobs"]
        assert choice["text"] == TEXT + alone.text
        assert {len(prompt) + 4} == {len(values) for values in lists.values()}
        assert (None, None) == (lists["token_logprobs"][0], lists["top_logprobs"][0])
        assert all(value <= 0 for value in lists["token_logprobs"][1:])
        # The tokenizer puts a special token before a text.
        assert "<|begin|>" + choice["text"] == "".join(lists["tokens"])
        offsets = lists["text_offset"]
        assert [0, 0] == offsets[:2]
        for begin, token in list(zip(offsets, lists["tokens"], strict=True))[1:]:
            assert choice["text"][begin:].startswith(token)
        assert alone.logprobs is not None
        assert alone.logprobs.tokens == lists["tokens"][len(prompt) :]
        for chosen, tops in zip(lists["token_logprobs"][1:], lists["top_logprobs"][1:], strict=True):
            assert chosen in tops.values()


async def test_a_stream_says_what_the_whole_answer_says(client: openai.AsyncOpenAI) -> None:
    for more in ({}, {"logprobs": 1}, {"echo": True}, {"echo": True, "logprobs": 0}, {"prompt": [TEXT, "Once"]}):
        asked = {"model": "demo", "prompt": TEXT, "max_tokens": 5, "temperature": 0, **more}
        whole = await client.completions.create(**asked)  # type: ignore[call-overload]
        chunks, usage = await streamed(client, **asked)
        assert usage == whole.usage
        for choice, chunk in zip(whole.choices, chunks, strict=True):
            lists = choice.logprobs and choice.logprobs.model_dump()
            assert (choice.text, choice.finish_reason, lists) == (chunk["text"], chunk["reason"], chunk["logprobs"])


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_without_output_is_the_prompt_alone(client: openai.AsyncOpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "demo", "prompt": TEXT, "max_tokens": 0, "echo": True, "logprobs": 1}
    if stream:
        [choice], usage = await streamed(client, **asked)
        text, reason, lists = choice["text"], choice["reason"], choice["logprobs"]
    else:
        whole = await client.completions.create(**asked)
        [only] = whole.choices
        assert only.logprobs is not None
        text, reason, lists, usage = only.text, only.finish_reason, only.logprobs.model_dump(), whole.usage
    assert (TEXT, "length") == (text, reason)
    assert "<|begin|>" + TEXT == "".join(lists["tokens"])
    assert usage is not None
    assert usage.prompt_tokens == len(lists["tokens"])


async def test_what_a_benchmark_reads_of_a_score(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """As lm-eval asks: the log probability of an answer is the sum of those of its tokens."""
    context, answer = await ids_of(stack, TEXT), (await ids_of(stack, " The pipe"))[1:]
    found = await client.completions.create(
        model="demo", prompt=[[*context, *answer], context], echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    for choice, prompt in zip(found.choices, ([*context, *answer], context), strict=True):
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs is not None
        scores = choice.logprobs.token_logprobs[len(context) : -1]
        assert len(scores) == len(prompt) - len(context)
        assert len(choice.logprobs.token_logprobs) == len(prompt) + 1
        # Special tokens in the prompt are part of its text.
        assert choice.text.startswith("<|begin|>" + TEXT)


async def test_tokens_may_be_named_by_their_ids(client: openai.AsyncOpenAI, stack: Stack) -> None:
    more: dict[str, Any] = {"extra_body": {"return_tokens_as_token_ids": True}}
    text = await client.completions.create(
        model="demo", prompt=TEXT, max_tokens=2, logprobs=1, echo=True, extra_body=more["extra_body"]
    )
    assert text.choices[0].logprobs is not None
    assert [f"token_id:{each}" for each in await ids_of(stack, TEXT)] == (text.choices[0].logprobs.tokens or [])[:-2]
    messages: Any = [{"role": "user", "content": "Hi"}]
    chat = await client.chat.completions.create(
        model="demo", messages=messages, logprobs=True, top_logprobs=2, max_tokens=3, **more
    )
    assert chat.choices[0].logprobs is not None
    for position in chat.choices[0].logprobs.content or ():
        assert all(token.token.startswith("token_id:") for token in (position, *position.top_logprobs))


async def test_tokens_of_a_chat_have_text_and_bytes(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "demo", "messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 2,
        "max_tokens": 7, "temperature": 0,
    }  # fmt: skip
    whole = (await client.chat.completions.create(**asked)).choices[0]
    chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
    content = [
        position
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs is not None
        for position in choice.logprobs.content or ()
    ]
    assert whole.logprobs is not None
    assert content == whole.logprobs.content
    assert whole.message.content == b"".join(bytes(position.bytes or ()) for position in content).decode()
    assert all(bytes(token.bytes or ()).decode() == token.token for each in content for token in each.top_logprobs)


async def test_the_log_probabilities_of_a_prompt_come_as_vllm_writes_them(stack: Stack) -> None:
    ids = await ids_of(stack, TEXT)
    body = {"model": "demo", "prompt": TEXT, "max_tokens": 1, "prompt_logprobs": 2}
    _, found, _ = await post(stack, "/v1/completions", json=body)
    [choice] = found["choices"]
    first, *others = choice["prompt_logprobs"]
    assert first is None
    assert [str(each) for each in ids[1:]] == [next(iter(each)) for each in others]
    for each in others:
        assert 2 == len(each)
        assert {"logprob", "rank", "decoded_token"} == set(next(iter(each.values())))
    assert (TEXT, None) == ("".join(next(iter(each.values()))["decoded_token"] for each in others), choice["logprobs"])

    chat = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "prompt_logprobs": 0}
    _, found, _ = await post(stack, "/v1/chat/completions", json=chat)
    assert found["usage"]["prompt_tokens"] == len(found["prompt_logprobs"])
    for path, asked in (("/v1/completions", body), ("/v1/chat/completions", chat)):
        status, found, _ = await post(stack, path, json={**asked, "stream": True})
        assert (400, "prompt_logprobs") == (status, found["error"]["param"])


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": []}, "prompt", "one text or one list of token ids"),
        ({"prompt": [TEXT, 7]}, "prompt[1]", "got 7"),
        ({"prompt": [[1], []]}, "prompt[1]", "got []"),
        ({"prompt": ["x"] * (bodies.MAX_PROMPTS + 1)}, "prompt", "at most 1024 prompts, got 1025"),
        ({"prompt": [TEXT, [10**6]]}, "prompt[1]", "vocabulary"),
        ({"prompt": [[1], [10**6]], "echo": True}, "prompt[1]", "vocabulary"),
        ({"prompt": [[1], [2**32]]}, "prompt[1]", "4294967296"),
        ({"prompt": [TEXT, "word " * 5000]}, "prompt[1]", "prompt is too long: "),
        ({"prompt": TEXT, "echo": 1}, "echo", "true or false"),
        ({"prompt": TEXT, "max_tokens": 0}, "max_tokens", "at least 1"),
        ({"prompt": TEXT, "suffix": "x"}, "suffix", 'must be ""'),
        ({"prompt": TEXT, "tools": [{}]}, "tools", "changes answers; only requests with messages take it"),
        ({"prompt": TEXT, "best_of": 3}, "best_of", "must be 1, n or absent"),
        ({"prompt": TEXT, "logprobs": 21}, "logprobs", "at most 20"),
        ({"prompt": [5] * 100, "echo": True, "logprobs": 20}, "logprobs", "must be at most 9"),
        ({"prompt": TEXT, "echo": True, "logprobs": -1}, "logprobs", "at least 0"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_is_wrong_is_named(stack: Stack, fields: dict[str, Any], param: str, words: str) -> None:
    status, found, _ = await post(stack, "/v1/completions", json={"model": "demo", **fields})
    assert (400, param) == (status, found["error"]["param"])
    assert words in found["error"]["message"]
    if param == "prompt[1]":
        # Output of the first prompt may have left before the second one is looked at.
        return
    streamed = await post(stack, "/v1/completions", json={"model": "demo", **fields, "stream": True})
    assert (status, found) == streamed[:2]


async def test_fields_that_change_nothing_are_taken(stack: Stack) -> None:
    neutral = {"suffix": "", "best_of": 1, "echo": False, "logprobs": None, "prompt_logprobs": None}
    assert 200 == (await post(stack, "/v1/completions", json={"model": "demo", "prompt": TEXT, **neutral}))[0]


async def test_a_repeat_under_a_key_gets_the_answers_to_all_prompts(stack: Stack) -> None:
    body = {"model": "demo", "prompt": [TEXT, "Once"], "max_tokens": 5, "temperature": 1}
    keyed: dict[str, Any] = {"json": body, "headers": {"Idempotency-Key": "several"}}
    first = (await post(stack, "/v1/completions", **keyed))[1]
    again = (await post(stack, "/v1/completions", **keyed))[1]
    assert first["choices"] == again["choices"]
    assert first["id"] == again["id"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_all_its_prompts(stack: Stack, stream: bool) -> None:
    engine: Any = stack.engines[0]
    body = {"model": "demo", "prompt": [TEXT] * 5, "max_tokens": 200, "ignore_eos": True, "stream": stream}
    engine._settings = engine._settings.model_copy(update={"base_ms": 50.0})
    try:
        asked = asyncio.create_task(post(stack, "/v1/completions", json=body))
        await until(lambda: engine.stats().running == 5)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await until(lambda: engine.stats().running == 0)
    finally:
        engine._settings = engine._settings.model_copy(update={"base_ms": 1.0})


async def test_a_client_comes_back_to_a_text_that_goes_on(stack: Stack) -> None:
    body = {"model": "demo", "prompt": TEXT, "max_tokens": 40, "temperature": 1, "stream": True}
    key = {"Idempotency-Key": "again"}
    whole = await lines(stack, body, "/v1/completions", key)
    ids = [line for line in whole if line.startswith("id: ")]
    middle = whole.index(ids[len(ids) // 2])
    last = ids[len(ids) // 2].split("\n")[0].removeprefix("id: ")
    rest = await lines(stack, body, "/v1/completions", {**key, "Last-Event-ID": last})
    assert text_of(whole) == text_of(whole[: middle + 1]) + text_of(rest)
    for more in ({"echo": True}, {"logprobs": 1}, {"prompt": [TEXT, "Once"]}):
        status, found, _ = await post(
            stack, "/v1/completions", json={**body, **more}, headers={"Idempotency-Key": "x", "Last-Event-ID": "3"}
        )
        assert (400, "Last-Event-ID") == (status, found["error"]["param"])


def text_of(found: list[str]) -> str:
    chunks = [json.loads(line.split("data: ")[1]) for line in found if "data: {" in line]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


async def test_receipts_tell_what_each_prompt_cost(stack: Stack) -> None:
    body = {"model": "demo", "prompt": [TEXT, "Once"], "max_tokens": 3}
    _, found, headers = await post(stack, "/v1/completions", json=body, headers={"x-penstock-receipt": "1"})
    assert [3, 3] == [each["attempts"][0]["output_tokens"] for each in found["usage"]["receipts"]]
    assert float(headers["openai-processing-ms"]) > 0
    assert found["system_fingerprint"].startswith("fp_")
