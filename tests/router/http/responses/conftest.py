"""Routers with the Responses API, and OpenAI's SDK as their client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio

from tests.support.stack import Stack, running_stack

HTTP = {"http": {"port": 0, "max_body_bytes": 1 << 16}}


def base(stack: Stack, router: int = 0) -> str:
    """Return the address of a router's HTTP API."""
    http = stack.routers[router].http
    assert http is not None
    return f"http://127.0.0.1:{http.port}"


def sdk(stack: Stack, router: int = 0, key: str = "none") -> openai.AsyncOpenAI:
    """Return OpenAI's client of a router."""
    return openai.AsyncOpenAI(base_url=f"{base(stack, router)}/v1", api_key=key, max_retries=0)


async def call(stack: Stack, method: str, path: str, router: int = 0, **more: Any) -> tuple[int, Any, Any]:
    """Return status, object and headers of a plain request."""
    async with aiohttp.ClientSession() as session, session.request(method, base(stack, router) + path, **more) as reply:
        return reply.status, json.loads(await reply.read() or b"null"), reply.headers


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """One router."""
    async with running_stack(tmp_path_factory.mktemp("stack"), router=HTTP, sim={"max_model_len": 512}) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client of the router."""
    async with sdk(stack) as found:
        yield found
