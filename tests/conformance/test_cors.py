"""Pages of other origins: what a browser asks before a call, and reads after it (CORS)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.target import CHAT, MARKS, TEXT, Target

pytestmark = MARKS

ALLOWED = "access-control-allow-origin"
READ_BY_SDKS = ("x-request-id", "retry-after", "x-should-retry")
"""Headers that OpenAI's client reads. A page sees them only where they are exposed."""


@pytest.fixture
def origin(target: Target) -> str:
    """Origin of a page that may call."""
    if not target.origin:
        pytest.skip("no page may call (give --origin)")
    return target.origin


def preflight(origin: str, method: str = "POST") -> dict[str, str]:
    """Build the headers that a browser sends before a call of OpenAI's client."""
    return {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type,x-stainless-lang",
    }


@pytest.mark.parametrize(
    ("path", "method"),
    [
        (CHAT, "POST"), (TEXT, "POST"), ("/v1/models", "GET"), ("/v1/responses", "POST"), ("/v1/messages", "POST"),
        ("/tokenize", "POST"), ("/v1/files/file-none", "DELETE"),
    ],
)  # fmt: skip
async def test_a_browser_may_call(target: Target, origin: str, path: str, method: str) -> None:
    reply = await target.call("OPTIONS", path, key=False, headers=preflight(origin, method))
    assert reply.status in (200, 204)
    assert reply.headers[ALLOWED] in (origin, "*")
    assert method in reply.headers["access-control-allow-methods"]
    headers = reply.headers["access-control-allow-headers"].lower()
    assert all(name in headers for name in ("authorization", "content-type", "x-stainless-lang"))


async def test_pages_of_another_origin_may_not_call(target: Target, origin: str) -> None:
    other = "https://elsewhere.example.org"
    reply = await target.call("OPTIONS", CHAT, key=False, headers=preflight(other))
    assert reply.headers.get(ALLOWED) is None
    reply = await target.post(CHAT, target.chat(), headers={"origin": other})
    assert reply.headers.get(ALLOWED) is None


@pytest.mark.parametrize(
    ("fields", "status"),
    [({}, 200), ({"stream": True}, 200), ({"temperature": 9}, 400), ({"model": "no-such-model"}, 404)],
    ids=["whole", "stream", "wrong", "unknown"],
)
async def test_a_page_reads_every_answer(target: Target, origin: str, fields: Any, status: int) -> None:
    reply = await target.post(CHAT, {**target.chat(), **fields}, headers={"origin": origin})
    assert reply.status == status
    assert reply.headers[ALLOWED] in (origin, "*")


async def test_a_page_reads_why_its_key_is_refused(target: Target, origin: str) -> None:
    if not target.key:
        pytest.skip("the server wants no key (give --api-key)")
    reply = await target.post(CHAT, target.chat(), key=False, headers={"origin": origin})
    assert (reply.status, reply.headers[ALLOWED] in (origin, "*")) == (401, True)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_page_reads_the_headers_that_sdks_need(target: Target, origin: str, stream: bool) -> None:
    reply = await target.post(CHAT, target.chat(stream=stream), headers={"origin": origin})
    shown = reply.headers["access-control-expose-headers"].lower()
    assert shown == "*" or all(name in shown for name in READ_BY_SDKS)


async def test_answers_for_one_origin_are_not_cached_for_another(target: Target, origin: str) -> None:
    reply = await target.call("GET", "/v1/models", headers={"origin": origin})
    assert reply.headers[ALLOWED] == "*" or "origin" in reply.headers["vary"].lower()
