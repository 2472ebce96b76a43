"""Errors of every kind, request ids, and headers for retries."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import openai
import pytest

from tests.conformance.target import CHAT, MARKS, TEXT, Reply, Target, refused

pytestmark = MARKS

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/nothing"), ("POST", "/v1/nothing"), ("GET", "/v1/")])
async def test_an_unknown_route_is_an_error_of_openais_form(target: Target, method: str, path: str) -> None:
    refused(await target.call(method, path), 404)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", CHAT), ("PUT", CHAT), ("DELETE", TEXT), ("POST", "/v1/models"), ("PATCH", TEXT)]
)
async def test_another_method_is_an_error_of_openais_form(target: Target, method: str, path: str) -> None:
    reply = await target.call(method, path)
    refused(reply, 405)
    assert "allow" in reply.headers


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "body", [b"{", b"", b"[]", b"7", b'"x"', b"null", b"\xff", b"[" * 60_000, b'{"a":NaN,,}', b'{"model":"\\ud800"}']
)
async def test_a_body_that_is_no_object_is_refused(target: Target, path: str, body: bytes) -> None:
    refused(await target.call("POST", path, data=body, headers=JSON), (400, 422))


async def test_a_body_that_is_too_large_is_refused(target: Target) -> None:
    data = io.BytesIO(json.dumps(target.text(prompt="x" * (16 << 20))).encode())
    refused(await target.call("POST", TEXT, data=data, headers=JSON), (400, 413))


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_is_not_found(target: Target, path: str, stream: bool) -> None:
    body = target.chat() if path == CHAT else target.text()
    error = refused(await target.post(path, {**body, "model": "no-such-model", "stream": stream}), 404)
    assert error["code"] == "model_not_found"


async def test_the_sdk_raises_its_own_errors(target: Target, sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await sdk.chat.completions.create(**{**target.chat(), "model": "no-such-model"})
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(**{**target.chat(), "temperature": 9})
    assert caught.value.param == "temperature"
    assert caught.value.request_id


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", CHAT), ("POST", TEXT), ("GET", "/v1/models"), ("GET", "/v1/files"), ("GET", "/v1/batches"),
        ("POST", "/v1/responses"), ("POST", "/v1/embeddings"), ("POST", "/v1/messages"), ("POST", "/tokenize"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic eDp5"}])
async def test_nobody_and_strangers_are_refused(
    target: Target, method: str, path: str, headers: dict[str, str]
) -> None:
    if not target.key:
        pytest.skip("the server wants no key (give --api-key)")
    body = target.chat() if method == "POST" else None
    reply = await target.call(method, path, key=False, headers=headers, json=body)
    if reply.status in (404, 405) and not target.complete:
        pytest.skip(f"the server has no {path}")
    if path == "/v1/messages":
        assert (reply.status, reply.json["error"]["type"]) == (401, "authentication_error")
    else:
        refused(reply, 401)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", CHAT, 200), ("POST", CHAT, 400), ("POST", TEXT, 200), ("POST", TEXT, 400), ("GET", "/v1/models", 200),
        ("GET", "/v1/models/none", 404), ("GET", "/v1/nothing", 404), ("GET", CHAT, 405),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mine", ["", "mine-7"])
async def test_every_answer_has_a_request_id(target: Target, method: str, path: str, status: int, mine: str) -> None:
    body: dict[str, Any] = target.chat() if path == CHAT else target.text()
    if status == 400:
        body["temperature"] = 9
    more = {"json": body} if method == "POST" else {}
    reply = await target.call(method, path, headers={"x-request-id": mine} if mine else {}, **more)
    assert reply.status == status, reply.body
    assert reply.headers["x-request-id"]
    assert not mine or reply.headers["x-request-id"] == mine


@pytest.mark.parametrize("status", [400, 404])
async def test_clients_are_told_not_to_repeat_what_cannot_succeed(target: Target, status: int) -> None:
    more: dict[str, Any] = {"temperature": 9} if status == 400 else {"model": "no-such-model"}
    reply = await target.post(CHAT, target.chat(**more))
    assert reply.status == status
    assert reply.headers.get("x-should-retry", "false") == "false"
    assert "retry-after" not in reply.headers


async def test_an_answer_tells_how_long_it_took(target: Target) -> None:
    assert int((await target.post(CHAT, target.chat())).headers["openai-processing-ms"]) >= 0


async def test_many_calls_at_once_are_all_answered_or_told_when_to_come_back(target: Target) -> None:
    async def one() -> Reply:
        return await target.post(CHAT, target.chat(max_tokens=2))

    for reply in await asyncio.gather(*(one() for _ in range(24))):
        if reply.status != 200:
            refused(reply, (429, 503))
            assert int(reply.headers["retry-after"]) >= 0
