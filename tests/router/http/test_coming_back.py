"""What only Penstock has over HTTP: streams that go on, receipts, the tier and the model that answered; and CORS."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.router.http.test_openai import ASK, HTTP, base, post
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "demo", "messages": ASK, "max_tokens": 60, "temperature": 0, "ignore_eos": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    async with running_stack(folder, routers=2, router=HTTP, sim={"base_ms": 5.0}) as running:
        yield running


async def events(
    stack: Stack, headers: dict[str, str], *, most: int = 10_000, router: int = 0, **more: Any
) -> list[tuple[str, Any]]:
    """Return ids and objects of a stream's events, and leave after so many with an id."""
    http = stack.routers[router].http
    assert http is not None
    url = f"http://127.0.0.1:{http.port}{PATH}"
    found: list[tuple[str, Any]] = []
    event_id = ""
    body = {**BODY, "stream": True, **more}
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        async for line in reply.content:
            if line.startswith(b"id: "):
                event_id = line[4:].decode().strip()
            elif line.startswith(b"data: {"):
                found.append((event_id, json.loads(line[6:])))
                if sum(1 for each, _ in found if each) >= most:
                    break
    return found


def text(found: list[tuple[str, Any]]) -> str:
    """Return the text of events."""
    return "".join(choice["delta"].get("content") or "" for _, chunk in found for choice in chunk["choices"])


@pytest.mark.parametrize("router", [0, 1])
async def test_a_stream_goes_on_after_its_last_event_at_any_router(stack: Stack, router: int) -> None:
    key = {"Idempotency-Key": f"come-back-{router}"}
    whole = await events(stack, {})
    begun = await events(stack, key, most=8)
    rest = await events(stack, {**key, "Last-Event-ID": begun[-1][0]}, router=router)
    assert text(whole) == text(begun) + text(rest)
    assert "role" not in rest[0][1]["choices"][0]["delta"]
    assert {chunk["id"] for _, chunk in begun} == {chunk["id"] for _, chunk in rest}
    # And once more, from what is kept under the key.
    assert text(rest) == text(await events(stack, {**key, "Last-Event-ID": begun[-1][0]}, router=router))


async def test_events_have_ids_only_where_a_client_can_come_back(stack: Stack) -> None:
    assert {"" for _ in range(1)} == {each for each, _ in await events(stack, {}, max_tokens=3)}


@pytest.mark.parametrize(
    ("headers", "stream"),
    [
        ({"Last-Event-ID": "3"}, True),
        ({"Last-Event-ID": "3", "Idempotency-Key": "k"}, False),
        ({"Last-Event-ID": "three", "Idempotency-Key": "k"}, True),
        ({"Last-Event-ID": "1," * 300 + "1", "Idempotency-Key": "k"}, True),
    ],
)
async def test_an_event_that_cannot_be_is_refused(stack: Stack, headers: dict[str, str], stream: bool) -> None:
    status, found, _ = await post(stack, PATH, json={**BODY, "stream": stream}, headers=headers)
    assert (400, "Last-Event-ID") == (status, found["error"]["param"])


@pytest.mark.parametrize("path", [PATH, "/v1/completions"])
async def test_a_stream_that_nobody_knows_is_not_found(stack: Stack, path: str) -> None:
    body = {**BODY, "stream": True} if path == PATH else {"model": "demo", "prompt": "a", "stream": True}
    headers = {"Last-Event-ID": "3", "Idempotency-Key": "nobody-used-it"}
    status, found, told = await post(stack, path, json=body, headers=headers)
    error = found["error"]
    said = (status, error["type"], error["code"], error["param"])
    assert (404, "not_found_error", "generation_failed", "Last-Event-ID") == said
    assert ("false", True) == (
        told["x-should-retry"],
        "can't go on after 3 tokens; its output is gone" in error["message"],
    )


async def test_a_receipt_is_in_the_usage_where_it_is_asked_for(stack: Stack) -> None:
    asked = {"x-penstock-receipt": "1"}
    _, plain, headers = await post(stack, PATH, json={**BODY, "max_tokens": 4})
    _, found, _ = await post(stack, PATH, json={**BODY, "max_tokens": 4}, headers=asked)
    streamed = (await events(stack, asked, max_tokens=4))[-1][1]
    assert "receipt" not in plain["usage"]
    for receipt in (found["usage"]["receipt"], streamed["usage"]["receipt"]):
        assert receipt["gpu_seconds"] > 0
        assert receipt["attempts"][0]["output_tokens"] == 4
    timing = dict(part.split(";dur=") for part in headers["server-timing"].split(", "))
    assert ["queue", "prefill", "decode"] == list(timing)
    assert float(headers["openai-processing-ms"]) >= float(timing["decode"])


@pytest.mark.parametrize(
    ("tier", "shown"),
    [("auto", "default"), ("scale", "default"), ("priority", "priority"), ("fast", "priority"), ("flex", "flex")],
)
async def test_the_tier_and_the_model_that_answered_are_named(stack: Stack, tier: str, shown: str) -> None:
    _, whole, _ = await post(stack, PATH, json={**BODY, "max_tokens": 1, "service_tier": tier})
    [first, *_] = await events(stack, {}, max_tokens=1, service_tier=tier)
    for found in (whole, first[1]):
        assert found["service_tier"] == shown
        assert found["system_fingerprint"].startswith("fp_")


async def test_pages_of_other_origins_may_call_only_where_it_is_set(stack: Stack, tmp_path: Path) -> None:
    preflight = {
        "Origin": "https://app.example.com",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    allowed = "Access-Control-Allow-Origin"
    async with aiohttp.ClientSession() as session:
        async with session.options(base(stack) + PATH, headers=preflight) as reply:
            assert (405, False) == (reply.status, allowed in reply.headers)
        router = {"http": {**HTTP["http"], "cors_origins": ["https://app.example.com"]}}
        async with running_stack(tmp_path, router=router) as open_stack:
            async with session.options(base(open_stack) + PATH, headers=preflight) as reply:
                assert (204, "https://app.example.com") == (reply.status, reply.headers[allowed])
                assert reply.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
                methods = set(reply.headers["Access-Control-Allow-Methods"].split(", "))
            http = open_stack.routers[0].http
            assert http is not None
            assert {route.method for route in http.app.router.routes()} == {*methods, "HEAD"}
            body = {**BODY, "max_tokens": 2, "stream": True}
            origin = {"Origin": "https://app.example.com"}
            async with session.post(base(open_stack) + PATH, json=body, headers=origin) as reply:
                assert "https://app.example.com" == reply.headers[allowed]
                assert "*" == reply.headers["Access-Control-Expose-Headers"]
            async with session.post(base(open_stack) + PATH, json={}, headers=origin) as reply:
                assert (400, "https://app.example.com") == (reply.status, reply.headers[allowed])
            async with session.post(base(open_stack) + PATH, json=body, headers={"Origin": "https://x.org"}) as reply:
                assert allowed not in reply.headers
