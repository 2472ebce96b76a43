"""What a router counts of calls over HTTP: each once, by the gRPC status that alerts read."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from cluster.alerts.service_alerts import REQUESTS
from cluster.errors import GenerationFailedError, PenstockError, QueueFullError, QueueUnavailableError
from router.inference.servicer import InferenceServicer
from tests.router.http.test_openai import ASK, HTTP, lines, post
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, TEXT = "http /v1/chat/completions", "http /v1/completions"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), router=HTTP) as running:
        yield running


def counts(stack: Stack, method: str = CHAT) -> dict[str, float]:
    """Return the calls of a method by status, and, in small letters, by reason."""
    found: dict[str, float] = {}
    for family in stack.routers[0]._metrics.registry.collect():
        if family.name in ("penstock_router_calls", "penstock_router_errors"):
            for each in family.samples:
                if each.name.endswith("_total") and each.labels["method"] == method:
                    found[each.labels.get("code") or each.labels["reason"].lower()] = each.value
    return found


def new(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (QueueUnavailableError("Redis is away", 1.0), 503, "UNAVAILABLE"),
        (QueueFullError("demo", 10, 1.0), 429, "RESOURCE_EXHAUSTED"),
        (GenerationFailedError("r", 3), 500, "ABORTED"),
        (RuntimeError("a bug"), 500, "INTERNAL"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_a_failed_call_is_counted_by_the_name_of_its_status(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str
) -> None:
    async def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(InferenceServicer, "Generate", fail)
    before = counts(stack)
    answer = await post(stack, "/v1/chat/completions", json={"model": "demo", "messages": ASK})
    assert status == answer[0]
    reason = error.reason if isinstance(error, PenstockError) else "INTERNAL"
    assert {code: 1.0, reason.lower(): 1.0} == new(before, counts(stack))


async def test_a_stream_that_fails_counts_as_no_good_call(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = InferenceServicer.StreamGenerate

    async def break_off(*call: Any) -> None:
        await serve(*call)
        raise GenerationFailedError("r", 3)

    monkeypatch.setattr(InferenceServicer, "StreamGenerate", break_off)
    before = counts(stack)
    told = await lines(stack, {"model": "demo", "messages": ASK, "max_tokens": 2, "stream": True})
    assert "error" in told[-1]
    assert {"ABORTED": 1.0, "generation_failed": 1.0} == new(before, counts(stack))


async def test_a_client_that_breaks_off_while_it_reads_nothing_is_no_fault(stack: Stack) -> None:
    """One prompt waits until it reads, and the others wait for their turn to write."""
    http = stack.routers[0].http
    assert http is not None
    server = http._runner.server
    assert server is not None
    body = {"model": "demo", "prompt": ["Hi"] * 8, "max_tokens": 2_000, "ignore_eos": True, "stream": True}
    before = counts(stack, TEXT)
    with socket.socket() as client:
        # So that little of the answer is on its way, and a close is a reset.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", http.port))
        sent = json.dumps({**body, "logprobs": 20}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        await loop.sock_sendall(client, f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
        await until(lambda: any(each._drain_waiter is not None for each in server.connections))
    await until(lambda: new(before, counts(stack, TEXT)) != {})
    assert {"CANCELLED": 1.0} == new(before, counts(stack, TEXT))


async def test_a_path_that_nobody_serves_is_the_clients_mistake(stack: Stack) -> None:
    before = counts(stack, "http")
    await post(stack, "/v1/nothing", json={})
    assert {"NOT_FOUND": 1.0, "not_found": 1.0} == new(before, counts(stack, "http"))


async def test_the_alert_on_refusals_counts_every_path_whose_requests_wait_in_line(stack: Stack) -> None:
    http = stack.routers[0].http
    assert http is not None
    paths = {resource.canonical for resource in http.app.router.resources()}
    assert {
        "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/v1/embeddings",
        "/classify", "/v1/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank",
    } == {path for path in paths if re.fullmatch(REQUESTS, f"http {path}")}  # fmt: skip
