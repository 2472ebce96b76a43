"""OpenAI's own SDK against a real router, with simulated engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio

from router.http.openapi.absent import absent
from tests.support.keys import Keys
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

HTTP = {"http": {"port": 0, "max_body_bytes": 1 << 16}}
ASK: list[Any] = [{"role": "user", "content": "What is Penstock?"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), router=HTTP, sim={"max_model_len": 256}) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{base(stack)}/v1", api_key="none", max_retries=0) as found:
        yield found


def base(stack: Stack) -> str:
    http = stack.routers[0].http
    assert http is not None
    return f"http://127.0.0.1:{http.port}"


async def post(stack: Stack, path: str, **more: Any) -> tuple[int, Any, Any]:
    """Return status, object and headers of a plain request."""
    async with aiohttp.ClientSession() as session, session.post(base(stack) + path, **more) as reply:
        return reply.status, json.loads(await reply.read() or b"null"), reply.headers


async def lines(
    stack: Stack, body: dict[str, Any], path: str = "/v1/chat/completions", headers: dict[str, str] | None = None
) -> list[str]:
    """Return the events of a stream as they are on the wire."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(base(stack) + path, json=body, headers=headers) as reply,
    ):
        assert (reply.status, reply.content_type) == (200, "text/event-stream")
        return [line for line in (await reply.text()).split("\n\n") if line]


async def test_a_conversation_is_answered(client: openai.AsyncOpenAI) -> None:
    found = await client.chat.completions.create(model="demo", messages=ASK, max_completion_tokens=9, temperature=0)
    assert found.object == "chat.completion"
    assert found.id.startswith("chatcmpl-")
    assert found.choices[0].message.role == "assistant"
    assert found.choices[0].message.content
    assert found.choices[0].finish_reason == "length"
    assert found.usage is not None
    assert found.usage.completion_tokens == 9
    assert found.usage.total_tokens == found.usage.prompt_tokens + 9
    assert found._request_id == found.id.removeprefix("chatcmpl-")


async def test_a_stream_says_what_the_whole_answer_says(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": ASK, "max_tokens": 12, "temperature": 0, "n": 2}
    whole = await client.chat.completions.create(**asked)
    texts, reasons, ids = ["", ""], ["", ""], set()
    stream = await client.chat.completions.create(**asked, stream=True)
    async for chunk in stream:
        ids.add((chunk.id, chunk.created, chunk.model))
        assert chunk.usage is None
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert len(ids) == 1


async def test_the_chunks_of_a_stream_come_in_the_order_that_clients_expect(stack: Stack) -> None:
    body = {"model": "demo", "messages": ASK, "max_tokens": 5, "stream": True}
    found = await lines(stack, {**body, "stream_options": {"include_usage": True}})
    assert found[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in found[:-1] if not line.startswith(":")]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    assert all("usage" not in chunk for chunk in chunks[:-1])

    running = await lines(stack, {**body, "stream_options": {"continuous_usage_stats": True}})
    counted = [json.loads(line[6:])["usage"]["completion_tokens"] for line in running[:-1] if line[0] != ":"]
    assert counted == sorted(counted)
    assert counted[-1] == 5


async def test_a_text_is_continued(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model="demo", prompt="Once", temperature=0)
    assert whole.object == "text_completion"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 16
    stream = await client.completions.create(model="demo", prompt="Once", temperature=0, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text
    ids = await client.completions.create(model="demo", prompt=[5, 6, 7], max_tokens=3)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 3


async def test_models_are_listed_with_their_context(client: openai.AsyncOpenAI) -> None:
    listed = [model async for model in client.models.list()]
    assert [(model.id, model.object) for model in listed] == [("demo", "model")]
    extra = {"root": "demo", "parent": None, "max_model_len": 256, "task": "generate"}
    assert (await client.models.retrieve("demo")).model_extra == extra


async def test_an_unknown_model_is_not_found(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="known models: demo") as caught:
        await client.chat.completions.create(model="gpt-5", messages=ASK)
    assert (caught.value.code, caught.value.type) == ("model_not_found", "not_found_error")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temperature": 9}, "temperature", "invalid_request"),
        ({"top_p": "x"}, "top_p", "invalid_request"),
        ({"messages": []}, "messages", "invalid_request"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].image_url",
            None,
        ),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0]", None),
        ({"messages": [{"content": "x"}]}, "messages[0].role", None),
        ({"tools": [{"type": "function"}]}, "tools[0].function", None),
        ({"logit_bias": {"1": 200}}, "logit_bias[1]", None),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"service_tier": "gold"}, "service_tier", None),
        ({"max_tokens": 4000}, "max_tokens", "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "word " * 600}]}, "messages", "context_length_exceeded"),
        ({"response_format": {"type": "json_object"}}, "response_format", None),
        ({"guided_regex": "a"}, "guided_regex", None),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs", None),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice[1]", None),
        ({"guided_choice": ["a", ""]}, "guided_choice[1]", None),
        ({"guided_choice": ["a", "a"]}, "guided_choice", None),
        ({"guided_json": {}, "structured_outputs": {"regex": "a"}}, "structured_outputs", None),
        ({"session_id": "x" * 129}, "session_id", None),
        ({"prompt_cache_key": "x" * 129}, "prompt_cache_key", None),
        ({"logprobs": True, "top_logprobs": 30}, "top_logprobs", None),
        ({"max_tokens": -1}, "max_tokens", None),
        ({"n": -1}, "n", None),
    ],
)
async def test_a_wrong_field_is_named(stack: Stack, fields: dict[str, Any], param: str, code: str | None) -> None:
    body = {"model": "demo", "messages": ASK, **fields}
    status, found, headers = await post(stack, "/v1/chat/completions", json=body)
    assert status == 400
    assert found["error"]["param"] == param
    assert found["error"]["type"] == "invalid_request_error"
    assert code is None or found["error"]["code"] == code
    assert headers["x-should-retry"] == "false"
    # The same error comes before a stream begins.
    if "stream_options" not in fields:
        streamed = await post(stack, "/v1/chat/completions", json={**body, "stream": True})
        assert streamed[:2] == (status, found)


@pytest.mark.parametrize(
    ("header", "value"), [("Idempotency-Key", "x" * 129), ("X-Session-ID", "x" * 129), ("Last-Event-ID", "7")]
)
async def test_a_wrong_header_is_named(stack: Stack, header: str, value: str) -> None:
    body = {"model": "demo", "messages": ASK, "max_tokens": 2, "stream": True}
    status, found, _ = await post(
        stack, "/v1/chat/completions", json=body, headers={"Idempotency-Key": "named", header: value}
    )
    assert (400, header) == (status, found["error"]["param"])
    assert found["error"]["message"].startswith(f"{header}: must")


_RESPONSE = {"model": "demo", "input": "hi"}
_CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
_WRONG = {"reasoning_effort": "silly"}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", {**_CHAT, **_WRONG}, "reasoning_effort"),
        ("/v1/chat/completions", {**_CHAT, **_WRONG, "stream": True}, "reasoning_effort"),
        ("/v1/chat/completions", {**_CHAT, "reasoning": {"effort": "silly"}}, "reasoning.effort"),
        ("/v1/chat/completions", {**_CHAT, "chat_template_kwargs": _WRONG}, "chat_template_kwargs.reasoning_effort"),
        ("/tokenize", {**_CHAT, **_WRONG}, "reasoning_effort"),
        ("/v1/responses", {**_RESPONSE, "reasoning": {"effort": "silly"}}, "reasoning.effort"),
        ("/v1/responses/input_tokens", {**_RESPONSE, "reasoning": {"effort": "silly"}}, "reasoning.effort"),
        ("/v1/messages", {**_CHAT, "max_tokens": 2, "output_config": {"effort": "silly"}}, "output_config.effort"),
        ("/v1/messages/count_tokens", {**_CHAT, "output_config": {"effort": "silly"}}, "output_config.effort"),
    ],
)
async def test_a_variable_that_the_template_refuses_is_named(
    stack: Stack, path: str, body: dict[str, Any], field: str
) -> None:
    status, found, _ = await post(stack, path, json=body)
    assert (400, field) == (status, found["error"].get("param", field))
    assert found["error"]["message"].startswith(f"{field}: the model's chat template refuses it: reasoning_effort is ")
    assert found["error"]["message"].endswith("; got 'silly'")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": -1}, "max_tokens: must be at least 1, got -1"),
        ({"n": 0}, "n: must be at least 1, got 0"),
        ({"min_tokens": -1}, "min_tokens: must be at least 0, got -1"),
        ({"top_k": 2**32}, "top_k: must be at most 4294967295, got 4294967296"),
    ],
)
async def test_a_number_out_of_bounds_is_told_the_bound_that_it_breaks(
    stack: Stack, fields: dict[str, Any], words: str
) -> None:
    _, found, _ = await post(stack, "/v1/chat/completions", json={"model": "demo", "messages": ASK, **fields})
    assert words == found["error"]["message"]


async def test_cached_tokens_are_part_of_the_prompts_tokens(stack: Stack) -> None:
    """Those of the prompt count once for all choices, so a price of the rest is never below nothing."""
    body = {"model": "demo", "prompt": "Penstock " * 60, "n": 3, "max_tokens": 2}
    for _ in range(2):
        _, found, _ = await post(stack, "/v1/completions", json=body)
    usage = found["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]


async def test_a_field_that_nobody_knows_is_left_out_and_named(stack: Stack) -> None:
    known = {"model": "demo", "messages": ASK, "max_tokens": 2, "user": "u", "metadata": {"a": "b"}, "store": False}
    status, _, headers = await post(stack, "/v1/chat/completions", json={**known, "frobnicate": 1, "seed": None})
    assert (status, headers["x-penstock-ignored"]) == (200, "frobnicate")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "written"),
    [("a\r\nSet-Cookie: b=c", r"a\r\nSet-Cookie: b=c"), ("\x1b[31m\0", r"\x1b[31m\x00"), ("\u65e5", r"\u65e5")],
    ids=["line", "control", "text"],
)
async def test_a_field_may_have_any_name(stack: Stack, name: str, written: str, stream: bool) -> None:
    body = {"model": "demo", "messages": ASK, "max_tokens": 2, "stream": stream, name: 1}
    async with aiohttp.ClientSession() as session, session.post(f"{base(stack)}/v1/chat/completions", json=body) as one:
        assert (200, written) == (one.status, one.headers["x-penstock-ignored"])
        assert "Set-Cookie" not in one.headers


async def test_fields_of_many_messages_do_not_make_more_headers_than_clients_read(stack: Stack) -> None:
    """Node reads 16 KiB of headers, aiohttp 8, and nginx 4 or 8."""
    messages = [{"role": "user", "content": "a", "frobnicate" * 15: 1} for _ in range(60)]
    body = {"model": "demo", "messages": messages, "max_tokens": 2, "x" * 9_000: 1}
    status, _, headers = await post(stack, "/v1/chat/completions", json=body)
    named = headers["x-penstock-ignored"].split(", ")
    assert (200, f"messages[0].{'frobnicate' * 15}") == (status, named[0])
    assert f"and {62 - len(named)} more" == named[-1]
    assert len(headers["x-penstock-ignored"]) < 2_100


async def test_a_wish_that_no_model_here_knows_is_left_out_and_named(stack: Stack) -> None:
    """Agents send it by themselves."""
    body = {"model": "demo", "messages": ASK, "max_tokens": 2, "verbosity": "low"}
    status, _, headers = await post(stack, "/v1/chat/completions", json=body)
    assert (status, headers["x-penstock-ignored"]) == (200, "verbosity")


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        ({"data": b"{", "headers": {"content-type": "application/json"}}, 400, "JSON"),
        ({"data": b"\xff", "headers": {"content-type": "application/json"}}, 400, "UTF-8"),
        ({"data": b"[" * 20_000 + b"]" * 20_000, "headers": {"content-type": "application/json"}}, 400, "nested"),
        ({"json": []}, 400, "object"),
        ({"data": b"{}", "headers": {"content-type": "text/plain"}}, 400, "content type"),
        ({"data": b'"\\ud800"', "headers": {"content-type": "application/json"}}, 400, ""),
        ({"json": {"model": "demo", "prompt": "x" * (1 << 16)}}, 413, "Too Large"),
    ],
)
async def test_a_body_that_is_no_request_gets_a_clear_error(
    stack: Stack, more: dict[str, Any], status: int, words: str
) -> None:
    got, found, _ = await post(stack, "/v1/completions", **more)
    assert got == status
    assert words in found["error"]["message"]


@pytest.mark.parametrize("many", ["", "[1]," * 300], ids=["deep", "deep and wide"])
async def test_a_body_is_nested_only_so_deep(stack: Stack, many: str) -> None:
    """Newer Pythons read more than they can write, which an error has to."""
    for depth, status, words in ((255, 200, "usage"), (256, 400, "must be nested at most 256 deep, got 257")):
        inner = depth - bool(many)
        value = "[" * inner + "]" * inner
        body = f'{{"model": "demo", "prompt": "a", "max_tokens": 1, "x": {f"[{many}{value}]" if many else value}}}'
        headers = {"content-type": "application/json"}
        got, found, _ = await post(stack, "/v1/completions", data=body.encode(), headers=headers)
        assert status == got, found
        assert words in json.dumps(found)


async def test_unknown_routes_and_methods_have_openais_form(stack: Stack) -> None:
    assert (await post(stack, "/v1/nothing", json={}))[0] == 404
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{base(stack)}/v1/completions") as reply:
            assert (reply.status, (await reply.json())["error"]["param"]) == (405, None)
        for path in ("/health", "/ping"):
            async with session.get(base(stack) + path) as reply:
                assert reply.status == 200
        async with session.get(f"{base(stack)}/version") as reply:
            assert (await reply.json())["version"]


@pytest.mark.parametrize(
    ("method", "path", "whose"),
    [
        ("POST", "/v1/responses/compact", "OpenAI"),
        ("POST", "/v1/images/generations", "OpenAI"),
        ("POST", "/audio/speech", "OpenAI"),
        ("GET", "/v1/vector_stores/vs_1/files", "OpenAI"),
        ("DELETE", "/v1/chat/completions/chatcmpl-1", "OpenAI"),
        ("GET", "/v1/chat/completions/chatcmpl-1/messages", "OpenAI"),
        ("POST", "/v1/messages/batches", "Anthropic"),
    ],
)
async def test_what_other_servers_have_is_told_as_that(stack: Stack, method: str, path: str, whose: str) -> None:
    async with aiohttp.ClientSession() as session, session.request(method, base(stack) + path, json={}) as reply:
        error = (await reply.json())["error"]
        assert (404, "not_found_error") == (reply.status, error["type"])
        assert "Allow" not in reply.headers
    assert error["message"] == (
        f"Not Found: Penstock does not have {path} of {whose}'s API; GET /openapi.json lists what it has"
    )


async def test_every_path_of_ours_is_there(stack: Stack) -> None:
    """None is told to be another server's."""
    async with aiohttp.ClientSession() as session, session.get(f"{base(stack)}/openapi.json") as reply:
        paths = (await reply.json())["paths"]
    assert len(paths) > 20
    assert [] == [path for path in paths if absent(path)]


async def test_the_clients_own_request_id_comes_back(stack: Stack) -> None:
    body = {"model": "demo", "messages": ASK, "max_tokens": 1}
    for more in ({}, {"model": "none"}):
        _, _, headers = await post(
            stack, "/v1/chat/completions", json={**body, **more}, headers={"x-request-id": "mine-7"}
        )
        assert headers["x-request-id"] == "mine-7"


async def test_a_repeat_under_an_idempotency_key_takes_over_or_gets_the_same_answer(stack: Stack) -> None:
    body = {"model": "demo", "messages": ASK, "max_tokens": 6, "temperature": 1}
    keyed: dict[str, Any] = {"json": body, "headers": {"Idempotency-Key": "k1"}}
    found = await asyncio.gather(*(post(stack, "/v1/chat/completions", **keyed) for _ in range(3)))
    answers = [answer for status, answer, _ in found if status == 200]
    # The newest call has the output; earlier ones are told so.
    assert {(status, answer["error"]["code"]) for status, answer, _ in found if status != 200} <= {(409, "taken_over")}
    assert {(await post(stack, "/v1/chat/completions", **keyed))[1]["id"] for _ in range(2)} == {answers[0]["id"]}
    other = {**body, "max_tokens": 7}
    status, answer, headers = await post(stack, "/v1/chat/completions", json=other, headers={"Idempotency-Key": "k1"})
    assert (status, headers["x-should-retry"]) == (409, "false")
    assert answer["error"]["code"] == "idempotency_key_reused"
    assert answer["error"]["param"] == "Idempotency-Key"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_request(stack: Stack, stream: bool) -> None:
    engine = stack.engines[0]
    body = {"model": "demo", "messages": ASK, "max_tokens": 200, "ignore_eos": True, "stream": stream}
    engine._settings = engine._settings.model_copy(update={"base_ms": 50.0})
    try:
        asked = asyncio.create_task(post(stack, "/v1/chat/completions", json=body))
        await until(lambda: engine.stats().running == 1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await until(lambda: engine.stats().running == 0)
    finally:
        engine._settings = engine._settings.model_copy(update={"base_ms": 1.0})


async def test_keys_are_bearer_tokens_or_x_api_key(tmp_path: Any) -> None:
    key = Keys(tmp_path / "keys.toml").acme
    sections = {"auth": {"keys_file": str(tmp_path / "keys.toml")}}
    async with running_stack(tmp_path, router=HTTP, sections=sections) as stack:
        body = {"model": "demo", "messages": ASK, "max_tokens": 1}
        for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
            assert (await post(stack, "/v1/chat/completions", json=body, headers=headers))[0] == 200
        for headers in ({}, {"authorization": "Bearer wrong"}):
            status, found, _ = await post(stack, "/v1/chat/completions", json=body, headers=headers)
            assert (status, found["error"]["type"]) == (401, "authentication_error")
