"""What the tests of files and batches share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import aiohttp
import openai
from openai.types import Batch

from tests.support.stack import Stack
from tests.support.waiting import until

HTTP: dict[str, Any] = {"http": {"port": 0, "max_file_mb": 1}}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def base(stack: Stack, router: int = 0) -> str:
    """Return the address of a router's HTTP API."""
    http = stack.routers[router].http
    assert http is not None
    return f"http://127.0.0.1:{http.port}"


def line(number: int, url: str = CHAT, **body: Any) -> str:
    """Build a line with a short prompt of its own."""
    prompt: dict[str, Any] = (
        {"messages": [{"role": "user", "content": f"Question {number}?"}]} if url == CHAT else {"prompt": f"Q {number}"}
    )
    whole = {"model": "demo", **prompt, "max_tokens": 2, "ignore_eos": True, **body}
    return json.dumps({"custom_id": f"q{number}", "method": "POST", "url": url, "body": whole})


def file_of(lines: Iterable[str], name: str = "in.jsonl") -> tuple[str, bytes]:
    """Return a file for the SDK."""
    return name, "".join(f"{each}\n" for each in lines).encode()


async def ended(client: openai.AsyncOpenAI, batch: str) -> Batch:
    """Wait for the end of a batch and return it."""
    found: list[Batch] = []

    async def over() -> bool:
        found[:] = [await client.batches.retrieve(batch)]
        return found[0].status not in ("validating", "in_progress", "finalizing", "cancelling")

    await until(over)
    return found[0]


async def run(client: openai.AsyncOpenAI, lines: Iterable[str], endpoint: Any = CHAT, **more: Any) -> Batch:
    """Upload a file, run it as a batch to the end and return it."""
    file = await client.files.create(file=file_of(lines), purpose="batch")
    batch = await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)
    return await ended(client, batch.id)


async def content(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """Return the objects of a file's lines."""
    assert file_id is not None
    return [json.loads(each) for each in (await client.files.content(file_id)).text.splitlines()]


async def call(stack: Stack, method: str, path: str, router: int = 0, **more: Any) -> tuple[int, Any, Any]:
    """Return status, object and headers of a plain request."""
    async with aiohttp.ClientSession() as session, session.request(method, base(stack, router) + path, **more) as reply:
        return reply.status, json.loads(await reply.read() or b"null"), reply.headers


async def stored(stack: Stack) -> set[str]:
    """Return the ids of everything that the pool's job store has, uploads included."""
    assert not stack.settings.redis.url
    return set(stack.stored_jobs())
