"""What load tests and plain readers make of streams: when the first event comes, and what comments do to others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from penstock.v1 import inference_pb2 as api
from router.http import event_stream
from router.http.chunks import ChunkOptions, Chunks
from router.http.event_stream import SILENCES, EventStream, Silences
from tests.router.dispatch.streams import move_on, stand
from tests.router.http.test_openai import ASK, HTTP, base, lines
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

SLOW = {"base_ms": 200.0}
"""Steps in which a stream is silent for a few times `SILENCE_S`."""
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK},
    "/v1/completions": {"prompt": "What is Penstock?"},
}
PATHS = tuple(BODIES)


def body(path: str) -> dict[str, Any]:
    return {"model": "demo", **BODIES[path], "max_tokens": 3, "stream": True, "ignore_eos": True}


def test_a_chat_has_no_event_before_its_first_token() -> None:
    """Its start is one in the API, long before it where the prompt is long."""
    chunks = Chunks({}, ChunkOptions())
    chunks.opened("r1")
    assert b"" == chunks.of(api.StreamGenerateResponse(started=api.Started(request_id="r1", prompt_tokens=5)))
    first, second = chunks.text(0, 0, (7,), "Hi").removesuffix(b"\n\n").split(b"\n\n")
    assert b'"delta":{"role":"assistant","content":""}' in first
    assert b'"delta":{"content":"Hi"}' in second


async def events(stack: Stack, path: str) -> list[dict[str, Any]]:
    """Read a stream as vLLM's benchmark does: strip what comes together, split it at empty lines, drop comments."""
    found, unread = list[dict[str, Any]](), ""
    async with aiohttp.ClientSession() as session, session.post(base(stack) + path, json=body(path)) as reply:
        async for part in reply.content.iter_any():
            unread += part.strip().decode()
            *whole, unread = unread.split("\n\n")
            if unread.startswith("data: "):
                whole, unread = [*whole, unread], ""
            found += [json.loads(each[6:]) for each in whole if not each.startswith(":") and each != "data: [DONE]"]
    return found


async def after_a_silence(stack: Stack, asked: Coroutine[Any, Any, list[str]]) -> list[str]:
    """Read a stream whose engine makes no step before its client has had a comment, however late that comes."""
    http = stack.routers[0].http
    assert http is not None
    silences = http.app[SILENCES]
    stand(stack)
    reading = asyncio.create_task(asked)
    await until(lambda: any(stream.begun for row in silences._rows for stream in row))
    move_on(stack)
    return await reading


@pytest.mark.parametrize("path", PATHS)
async def test_comments_take_no_event_from_readers_that_split_at_empty_lines(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "SILENCE_S", 0.05)
    async with running_stack(tmp_path, router=HTTP, sim=SLOW) as stack:
        assert any(each.startswith(":") for each in await after_a_silence(stack, lines(stack, body(path), path)))
        said = [
            str(choice.get("text") or choice.get("delta", {}).get("content") or "")
            for event in await events(stack, path)
            for choice in event["choices"]
        ]
    assert 3 == len(list(filter(None, said)))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("prompts", [1, 2])
async def test_a_stream_is_kept_alive_before_its_first_token(
    path: str, prompts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "SILENCE_S", 0.05)
    asked = body(path)
    if "prompt" in asked:
        asked["prompt"] = [asked["prompt"]] * prompts
    async with running_stack(tmp_path, router=HTTP, sim=SLOW) as stack:
        found = await after_a_silence(stack, lines(stack, asked, path))
    assert found[0].startswith(": keep-alive\n")
    assert found[-1] == "data: [DONE]"


async def test_an_answer_that_has_ended_is_not_begun() -> None:
    app = web.Application()
    app[SILENCES] = Silences()
    stream = EventStream(make_mocked_request("POST", "/", app=app), Chunks({}, ChunkOptions()), dict)
    stream.wait()
    assert stream.keep_alive() is None, "it is not silent yet"
    begin = stream.keep_alive()
    assert begin is not None
    stream.close()
    await begin
    assert not stream.begun
    assert 0 == len(app[SILENCES])
