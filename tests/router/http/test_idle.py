"""Idle and half-open connections: they are bounded, they end, and new calls are served all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from router.http import idle, server
from router.http.idle import IdleConnections
from tests.router.http.test_openai import ASK, HTTP, post
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def opened(stack: Stack, number: int, data: bytes = b"") -> AsyncIterator[list[Connection]]:
    """Hold so many connections that have sent some bytes."""
    http = stack.routers[0].http
    assert http is not None
    found: list[Connection] = []
    for _ in range(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(data)
        await writer.drain()
        if data.endswith(b"\r\n\r\n"):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
        found.append((reader, writer))
    try:
        yield found
    finally:
        for _, writer in found:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def gone(connections: list[Connection]) -> int:
    return sum(reader.at_eof() or reader.exception() is not None for reader, _ in connections)


@pytest.mark.parametrize("data", [b"", HEAD, HEAD + b"\r\n"], ids=["silent", "half a head", "answered"])
async def test_idle_connections_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(server, "most_connections", lambda: 10)
    monkeypatch.setattr(idle, "_LOOK_S", 0.05)
    monkeypatch.setattr(idle, "_LEAST_S", 0.5)
    async with running_stack(tmp_path, router=HTTP) as stack, opened(stack, 40, data) as old:
        await until(lambda: gone(old) == 30)
        body = {"model": "demo", "messages": ASK, "max_tokens": 2}
        status, _, _ = await post(stack, "/v1/chat/completions", json=body)
        assert status == 200


async def test_a_connection_with_a_request_is_never_closed_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "most_connections", lambda: 3)
    monkeypatch.setattr(idle, "_LOOK_S", 0.05)
    monkeypatch.setattr(idle, "_LEAST_S", 0.5)
    async with running_stack(tmp_path, router=HTTP, sim={"base_ms": 50.0}) as stack:
        body = {"model": "demo", "messages": ASK, "max_tokens": 20, "ignore_eos": True}
        calls = [asyncio.create_task(post(stack, "/v1/chat/completions", json=body)) for _ in range(6)]
        await until(lambda: stack.routers[0].pools["demo"].active == 6)
        async with opened(stack, 5) as silent:
            await until(lambda: gone(silent) == 5)
        assert [(await call)[0] for call in calls] == [200] * 6


async def test_a_connection_without_a_whole_head_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_IDLE_S", 0.3)
    async with (
        running_stack(tmp_path, router=HTTP) as stack,
        opened(stack, 3, HEAD) as half,
        opened(stack, 3) as silent,
    ):
        await until(lambda: gone([*half, *silent]) == 6)


def test_those_that_are_idle_longest_go_first_and_new_ones_last() -> None:
    bound = IdleConnections(2)
    bound.busy = {"busy"}
    assert bound.surplus(["old", "busy"], 1.0) == []
    bound._since |= {"late": 9.0, "early": 5.0, "closed": 1.0}
    assert bound.surplus(["old", "late", "new", "early", "busy"], 20.0) == ["old", "early", "late"]
    assert set(bound._since) == {"old", "late", "new", "early", "busy"}
    assert IdleConnections(None).surplus(["a", "b", "c"], 0.0) == []


def test_a_look_below_the_bound_keeps_no_list_and_forgets_those_that_have_closed() -> None:
    bound = IdleConnections(1000)
    bound._since = {f"closed {number}": 1.0 for number in range(200)} | {"open": 2.0}
    assert bound.surplus(["open", "new"], 20.0) == []
    assert {"open": 2.0} == bound._since
    several = [f"open {number}" for number in range(900)]
    bound._since = dict.fromkeys(several[:300], 3.0) | {"closed": 4.0}
    assert bound.surplus(several, 20.0) == []
    assert 301 == len(bound._since)
