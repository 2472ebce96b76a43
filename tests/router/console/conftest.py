"""A cluster, its console, and a browser, started once for all tests of the console."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from penstock.client import AsyncClient
from router.console.caller import key_metadata
from router.console.server import ConsoleFacts, ConsoleServer
from tests.router.console.browser import Tab, open_tab, running_chromium
from tests.support.stack import Stack, running_stack, sim_pool

SLOW_MS = 150.0
"""Of a step, so that an answer is there long enough to be stopped."""
ANSWER = (
    "<think>I need the weather.</think>I look it up."
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)
POOL = {
    **sim_pool(base_ms=2.0),
    "slo": {"interactive": {"ttft_p99_s": 60.0, "itl_p95_s": 20.0}, "standard": {"ttft_p99_s": 60.0}},
    "autoscale": {"mode": "active", "max_replicas": 4},
    "price_per_gpu_hour": 3.0,
}


@dataclass(frozen=True, slots=True)
class Console:
    """A console and the cluster behind it."""

    stack: Stack
    url: str
    port: int

    def client(self) -> AsyncClient:
        """Return a client of the same routers, to compare with."""
        return AsyncClient(f"127.0.0.1:{self.stack.routers[0].port}")


@asynccontextmanager
async def running_console(stack: Stack, **options: Any) -> AsyncIterator[Console]:
    """Run a console of a cluster."""
    target = f"127.0.0.1:{stack.routers[0].port}"
    async with AsyncClient(target, metadata=key_metadata) as client:
        server = ConsoleServer(client, ConsoleFacts(target, planner=True), **options)
        await server.start("127.0.0.1", 0)
        try:
            yield Console(stack, f"http://127.0.0.1:{server.port}", server.port)
        finally:
            await server.stop()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def console(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    pools = {"demo": POOL, "other": sim_pool(base_ms=SLOW_MS), "tools": sim_pool(answer=ANSWER)}
    sections = {"autoscaler": {"tick_s": 0.2, "lease_s": 60.0}}
    async with (
        running_stack(tmp_path_factory.mktemp("console"), replicas=2, pools=pools, sections=sections) as stack,
        running_console(stack) as running,
    ):
        yield running


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with running_chromium() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def tab(browser: Browser, console: Console) -> AsyncIterator[Tab]:
    async with open_tab(browser, console.url) as opened:
        yield opened
