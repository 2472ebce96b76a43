"""Streams of servers with OpenAI's API, as a load test reads them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from cluster.addresses import free_port
from cluster.errors import SettingsError
from loadtest.load.driver.http_transport import HttpTransport, follow_events
from loadtest.load.driver.stream import StreamObservation
from loadtest.load.driver.target import Target, split_routers
from loadtest.load.driver.transport import Observers, StreamFailedError
from loadtest.load.schedule.plan import PlannedRequest
from penstock.v1 import types_pb2 as types


async def stream(*chunks: Any) -> AsyncIterator[bytes]:
    """Yield the lines of a stream."""
    yield b": queue position=0\n"
    for chunk in chunks:
        yield f"data: {json.dumps(chunk)}\n".encode()
        yield b"\n"
    yield b"data: [DONE]\n"


def chunk(text: str, tokens: int | None = None, reason: str | None = None) -> dict[str, Any]:
    """Make a chunk, with its usage so far where the server sends it."""
    usage = {} if tokens is None else {"usage": {"prompt_tokens": 5, "completion_tokens": tokens}}
    return {"choices": [{"text": text, "finish_reason": reason}], **usage}


async def seen(*chunks: Any) -> tuple[StreamObservation, list[int]]:
    """Return what is noted of a stream, and the tokens of its messages."""
    found, tokens = StreamObservation(0.0), list[int]()
    await follow_events(
        stream(*chunks), found, Observers(lambda _, new: tokens.append(new), lambda _, new: tokens.append(new))
    )
    return found, tokens


async def test_a_chunk_has_as_many_tokens_as_its_usage_says() -> None:
    last = {
        "choices": [],
        "usage": {"prompt_tokens": 5, "completion_tokens": 4, "receipt": {"attempts": [{"queue_time": 0.25}]}},
    }
    found, tokens = await seen(chunk("a", 1), chunk("bc", 3), chunk("d", 4, "length"), last)
    assert ([1, 2, 1], 4, 2) == (tokens, found.tokens, len(found.gaps))
    assert found.finished is not None
    assert (5, 4) == (found.finished.usage.prompt_tokens, found.finished.usage.output_tokens)
    assert types.FINISH_REASON_LENGTH == found.finished.choices[0].finish_reason
    assert 0.25 == found.queue_s


async def test_a_chunk_without_usage_is_one_token() -> None:
    found, tokens = await seen(chunk(""), chunk("a"), chunk("b"), chunk("", reason="stop"))
    assert ([1, 1], None) == (tokens, found.queue_s)
    assert found.finished is not None
    assert 2 == found.finished.usage.output_tokens


async def test_a_stream_without_an_end_has_no_last_event() -> None:
    assert (await seen(chunk("a", 1)))[0].finished is None


async def test_an_error_in_a_stream_is_counted_by_its_code() -> None:
    with pytest.raises(StreamFailedError) as raised:
        await seen(chunk("a", 1), {"error": {"code": "engine_failed", "message": "sorry", "type": "server_error"}})
    assert ("ENGINE_FAILED", "sorry") == (raised.value.reason, raised.value.detail)


def test_the_version_may_be_left_out_of_a_url() -> None:
    assert ("http://a:1/v1", "https://b/x/v1") == split_routers("http://a:1/, https://b/x/v1")


@pytest.mark.parametrize(
    ("address", "why"),
    [("http://127.0.0.1:{port}", "Connection refused"), ("http://no.such.host.invalid", "Name or service not known")],
)
async def test_a_server_that_is_not_there_is_told_in_few_words(address: str, why: str) -> None:
    """Who passes the error on names the address."""
    target = Target(split_routers(address.format(port=free_port("127.0.0.1"))))
    with pytest.raises(SettingsError) as caught:
        await HttpTransport.open(target)
    assert f"no answer: {why}" == str(caught.value)


async def test_another_server_that_is_not_there_is_told_too() -> None:
    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "demo"}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    async with TestServer(app) as server:
        gone = f"http://127.0.0.1:{free_port('127.0.0.1')}/v1"
        transport = await HttpTransport.open(Target(split_routers(f"{server.make_url('/')},{gone}")))
        with pytest.raises(SettingsError) as caught:
            await transport.connect()
        await transport.close()
    assert f"no answer of {gone}: Connection refused" == str(caught.value)


async def test_a_stream_of_another_kind_is_a_failure() -> None:
    """It must be in a count, so that requests are those that ended."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "demo"}]})

    async def completions(_: web.Request) -> web.Response:
        return web.Response(text='data: {"choices": [{}], "usage": {"completion_tokens": null}}\n\n')

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", completions)
    async with TestServer(app) as server:
        transport = await HttpTransport.open(Target(split_routers(str(server.make_url("/")))))
        planned, observers = PlannedRequest(0, 0.0, "chat", 2, 1, 1), Observers(lambda *_: None, lambda *_: None)
        with pytest.raises(StreamFailedError) as caught:
            await transport.send(planned, [1], 1, StreamObservation(0.0), observers)
        await transport.close()
    assert "PROTOCOL" == caught.value.reason


async def test_a_file_that_has_no_certificates_is_told(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    target = Target(split_routers("https://127.0.0.1:1"), ca=str(file))
    with pytest.raises(SettingsError, match="certificates can't be used"):
        await HttpTransport.open(target)
