"""A router that drains, as clients that speak HTTP see it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

from tests.router.http.test_openai import ASK, HTTP, base
from tests.support.speed import patience
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

BODY: dict[str, Any] = {"model": "demo", "messages": ASK, "max_tokens": 100, "ignore_eos": True}
LONG = {"base_ms": 20.0, "max_model_len": 8192}


def draining(stack: Stack, drain_s: float = 20.0) -> asyncio.Task[None]:
    """Begin to stop the router."""
    return asyncio.create_task(stack.routers[0].stop(drain_s=drain_s))


async def test_open_answers_come_whole_and_new_requests_are_refused_with_a_time_to_come_again(tmp_path: Path) -> None:
    async with running_stack(tmp_path, router=HTTP, sim=LONG) as stack:
        url = f"{base(stack)}/v1/chat/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json={**BODY, "stream": True}) as stream:
            first = await stream.content.readline()
            whole = asyncio.create_task(session.post(url, json=BODY))
            # On a busy machine the others may end before all are refused, and the drain with them.
            longest = asyncio.create_task(session.post(url, json={**BODY, "max_tokens": 8_000}))
            await until(lambda: stack.routers[0]._inference.open_calls == 3)
            stopping = draining(stack, 60.0)
            for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/files"):
                sent = (
                    {**BODY, "prompt": "x", "input": "x"}
                    if path != "/v1/responses"
                    else {"model": "demo", "input": "x"}
                )
                form = {"data": {"purpose": "batch"}} if path == "/v1/files" else {"json": sent}
                async with session.post(base(stack) + path, **form) as refused:  # type: ignore[arg-type]
                    found = (path, refused.status, refused.headers["retry-after"], refused.headers["x-should-retry"])
                    assert (path, 503, "1", "true") == found, await refused.text()
                    assert "close" == refused.headers["Connection"]
            async with session.get(f"{base(stack)}/health") as health:
                assert 503 == health.status
            rest = (await stream.read()).decode()
            async with await whole as answer:
                assert 100 == (await answer.json())["usage"]["completion_tokens"]
                assert "close" == answer.headers["Connection"]
            assert not stopping.done()
            longest.cancel()
        assert first.startswith(b"data: ")
        assert rest.endswith("data: [DONE]\n\n")
        await stopping


async def test_a_connection_closes_when_a_drain_begins_and_one_with_a_stream_after_it(tmp_path: Path) -> None:
    async with running_stack(tmp_path, router=HTTP, sim=LONG) as stack:
        http = stack.routers[0].http
        assert http is not None
        idle, idle_out = await asyncio.open_connection("127.0.0.1", http.port)
        idle_out.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in await idle.readuntil(b"\r\n\r\n")
        busy, busy_out = await asyncio.open_connection("127.0.0.1", http.port)
        sent = json.dumps({**BODY, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\n"
        busy_out.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + sent)
        await busy.readuntil(b"data: ")
        # An open call of another client, so that the drain is not over with the stream.
        async with aiohttp.ClientSession() as session:
            longer = asyncio.create_task(
                session.post(f"{base(stack)}/v1/chat/completions", json={**BODY, "max_tokens": 4000})
            )
            await until(lambda: stack.routers[0]._inference.open_calls == 2)
            stopping = draining(stack)
            async with asyncio.timeout(15 * patience()):
                assert b"" == await idle.read()
                assert (await busy.read()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert not stopping.done()
            longer.cancel()
        idle_out.close()
        busy_out.close()
        await stopping


async def test_a_stream_that_outlasts_the_drain_ends_with_an_error(tmp_path: Path) -> None:
    async with running_stack(tmp_path, router=HTTP, sim=LONG) as stack, aiohttp.ClientSession() as session:
        body = {**BODY, "stream": True, "max_tokens": 4000}
        async with session.post(f"{base(stack)}/v1/chat/completions", json=body) as stream:
            await stream.content.readline()
            stopping = draining(stack, 0.1)
            last = (await stream.read()).decode().rstrip().split("\n\n")[-1]
        retry, _, data = last.partition("\ndata: ")
        assert retry.startswith("retry: ")
        error = json.loads(data)["error"]
        assert error["retry_after"] >= 0
        assert "server_error" == error["type"]
        await stopping


async def test_the_rest_of_a_body_is_read_while_a_router_drains(tmp_path: Path) -> None:
    async with running_stack(tmp_path, router=HTTP, sim=LONG) as stack, aiohttp.ClientSession() as session:
        gate = asyncio.Event()

        async def slow() -> Any:
            yield json.dumps(BODY).encode()
            await gate.wait()
            yield b" "

        open_call = asyncio.create_task(
            session.post(f"{base(stack)}/v1/chat/completions", json={**BODY, "max_tokens": 4000})
        )
        await until(lambda: stack.routers[0]._inference.open_calls == 1)
        typed = {"Content-Type": "application/json"}
        sending = asyncio.create_task(session.post(f"{base(stack)}/v1/chat/completions", data=slow(), headers=typed))
        http = stack.routers[0].http
        assert http is not None
        await until(lambda: len(http._idle.busy) == 2)
        stopping = draining(stack)
        await asyncio.sleep(0)
        gate.set()
        async with asyncio.timeout(15 * patience()), await sending as refused:
            assert 503 == refused.status
        open_call.cancel()
        await stopping
