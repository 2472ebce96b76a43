"""What a supervisor hears from a router: whether it turns, and whether it takes work."""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import router.server
from tests.support.stack import Stack, running_stack, stream_request
from tests.support.waiting import until


@pytest_asyncio.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path, sim={"base_ms": 5.0}) as running:
        yield running


async def answer(stack: Stack, path: str) -> int:
    return await asyncio.to_thread(status, f"http://127.0.0.1:{stack.routers[0].metrics_port}{path}")


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:  # noqa: S310 - the test's own
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def test_a_router_that_serves_says_yes(stack: Stack) -> None:
    assert [200, 200, 200] == [await answer(stack, path) for path in ("/livez", "/readyz", "/metrics")]


async def test_a_draining_router_is_live_and_not_ready(stack: Stack) -> None:
    call = stack.inference().StreamGenerate(stream_request(max_tokens=4000, ignore_eos=True))
    await call.read()
    stopping = asyncio.create_task(stack.routers[0].stop(drain_s=20.0))
    await until(lambda: answers(stack, "/readyz", 503))
    assert 200 == await answer(stack, "/livez")
    call.cancel()
    await stopping


async def answers(stack: Stack, path: str, wanted: int) -> bool:
    return wanted == await answer(stack, path)


async def test_a_router_that_stands_still_is_not_live(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router.server, "LIVE_S", 0.05)
    heard: list[int] = []
    asking = threading.Thread(
        target=lambda: heard.append(status(f"http://127.0.0.1:{stack.routers[0].metrics_port}/livez"))
    )
    asking.start()
    while not heard:
        # The loop does nothing else meanwhile.
        time.sleep(0.005)  # noqa: ASYNC251
    asking.join()
    assert [503] == heard
    await until(lambda: answers(stack, "/livez", 200))
