"""What a public port of HTTP meets: nonsense, slow and silent clients, foreign names, new certificates."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from cluster.addresses import is_own_name
from cluster.telemetry.logs import JsonFormatter
from cluster.trust import tls as tls_files
from cluster.trust.verifying import trusting
from penstock.batch.encoding import is_unicode
from router.http import calls, event_stream
from tests.router.http.test_openai import ASK, HTTP, lines, post
from tests.router.http.test_readers import after_a_silence
from tests.router.server.test_tls import dialer, shown_by, tls
from tests.support.certificates import LOOPBACK, Authority
from tests.support.keys import Keys
from tests.support.speed import patience
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY = json.dumps({"model": "demo", "messages": ASK, "max_tokens": 2}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), router=HTTP, sim={"max_model_len": 4096}) as running:
        yield running


async def raw(stack: Stack, *pieces: bytes) -> bytes:
    """Send bytes as they are, and return what comes back until the server closes or is quiet."""
    http = stack.routers[0].http
    assert http is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(15 * patience()):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


JSON = {"Content-Type": "application/json"}
CLOSE = b"Connection: close\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Big: " + b"x" * 70_000 + b"\r\n\r\n",
        # Two proxies could disagree about where such a request ends.
        HEAD + CLOSE + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + CLOSE + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        HEAD + CLOSE + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
        HEAD + CLOSE + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        HEAD + CLOSE + b"Content-Length : 5\r\n\r\nabcde",
    ],
)
async def test_nonsense_is_refused_and_the_next_request_is_served(stack: Stack, sent: bytes) -> None:
    answer = await raw(stack, sent)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400", b"HTTP/1.1 505"))
    assert (await post(stack, "/v1/chat/completions", data=BODY, headers=JSON))[0] == 200


async def test_what_is_no_request_is_one_line_without_its_bytes(
    stack: Stack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of gRPC at the port of HTTP is such, and a header that is broken may be a key."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    broken = b"GET /health HTTP/1.1\r\nHost: localhost\r\nAuthorization Bearer psk_secret\r\n\r\n"
    monkeypatch.setattr(logging.getLogger("router"), "propagate", True)
    with caplog.at_level(logging.INFO, "router.http.server"):
        for sent in (preface, broken):
            assert b" 400 " in await raw(stack, sent)
    found = [each for each in caplog.records if each.name == "router.http.server"]
    assert [("http.malformed", logging.INFO, None)] * 2 == [(e.getMessage(), e.levelno, e.exc_info) for e in found]
    lines = "".join(map(JsonFormatter().format, found))
    assert "127.0.0.1" in lines
    assert "psk_secret" not in lines + caplog.text


@pytest.mark.parametrize("known", [True, False])
async def test_a_body_that_cannot_be_read_is_one_line(
    stack: Stack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Whoever reaches the port may send it, as often as they like."""
    path = "/v1/chat/completions" if known else "/v1/nowhere"
    head = HEAD.replace(b"/v1/chat/completions", path.encode()) + b"Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\n"
    monkeypatch.setattr(logging.getLogger("router"), "propagate", True)
    with caplog.at_level(logging.INFO, "router.http.server"):
        await raw(stack, head + b"plain")
        await until(lambda: any(each.name == "router.http.server" for each in caplog.records))
    found = [each for each in caplog.records if each.name == "router.http.server"]
    assert [("http.malformed", logging.INFO, None)] == [(e.getMessage(), e.levelno, e.exc_info) for e in found]


async def test_a_chunked_body_is_read(stack: Stack) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (BODY[:9], BODY[9:])) + b"0\r\n\r\n"
    assert (await raw(stack, HEAD + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
async def test_a_body_that_is_not_compressed_as_it_says_is_the_clients_mistake(
    stack: Stack, path: str, encoding: str
) -> None:
    kind = "application/json" if path.startswith("/v1/chat") else "multipart/form-data; boundary=X"
    headers = {"Content-Type": kind, "Content-Encoding": encoding}
    status, body, told = await post(stack, path, data=b"plainly not compressed, at all" * 9, headers=headers)
    assert (400, "Content-Encoding", "close") == (status, body["error"]["param"], told["Connection"])


async def test_a_broken_chunk_in_the_midst_of_a_body_is_the_clients_mistake(stack: Stack) -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    answer = await raw(stack, head + b"5\r\n{" + b" " * 4 + b"\r\n", b"zz\r\n")
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files"])
async def test_an_unknown_compression_is_named(stack: Stack, path: str) -> None:
    kind = "application/json" if path.startswith("/v1/chat") else "multipart/form-data; boundary=X"
    _, body, _ = await post(stack, path, data=BODY, headers={"Content-Type": kind, "Content-Encoding": "rot13"})
    assert "Content-Encoding" == body["error"]["param"]
    said = re.fullmatch(r'Content-Encoding: must be (gzip, deflate.*) or absent, got "rot13"', body["error"]["message"])
    assert said, body
    for name in said[1].split(", "):
        # One whose library is missing is not named: the server refuses it before any handler sees it.
        headers = {"Content-Type": kind, "Content-Encoding": name}
        _, body, _ = await post(stack, path, data=b"plainly not", headers=headers)
        assert "Content-Encoding" == body["error"]["param"], name


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"messages": ASK}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/messages", {"messages": ASK, "max_tokens": 2}),
        ("/v1/messages/count_tokens", {"messages": ASK}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/batches", {"input_file_id": "file-x", "endpoint": "/v1/completions", "completion_window": "24h"}),
    ],
)
async def test_a_header_that_is_no_text_is_named(stack: Stack, path: str, more: dict[str, object]) -> None:
    body = json.dumps({"model": "demo", **more}).encode()
    head = HEAD.replace(b"/v1/chat/completions", path.encode()) + CLOSE
    # Batches have no session.
    for header in ("Idempotency-Key", "X-Session-ID")[: 1 if path == "/v1/batches" else 2]:
        wrong = f"{header}: ".encode() + b"\xff\r\n"
        answer = await raw(stack, head + wrong + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert f"{header}: must be UTF-8".encode() in answer


@pytest.mark.parametrize(
    ("path", "header"),
    [
        ("/v1/messages", b"x-request-id: a\xff"),
        ("/v1/chat/completions", b"Idempotency-Key: k\r\nLast-Event-ID: a\xff"),
        ("/v1/chat/completions", b"Content-Encoding: a\xff"),
    ],
)
async def test_an_error_repeats_no_byte_of_a_header_that_is_no_text(stack: Stack, path: str, header: bytes) -> None:
    """Python reads it as half of a surrogate pair, and other languages' readers of JSON refuse that."""
    body = json.dumps({"model": "nobody", "messages": ASK, "max_tokens": 2, "stream": True}).encode()
    head = HEAD.replace(b"/v1/chat/completions", path.encode()) + CLOSE + header + b"\r\n"
    answer = await raw(stack, head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert answer.startswith(b"HTTP/1.1 4")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert is_unicode(error)
    assert "request_id" not in error or f"x-request-id: {error['request_id']}\r\n".encode() in answer


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("/responses/resp_1/cancel", "/v1/responses/resp_1/cancel"),
        ("/v1/tokenize", "/tokenize"),
    ],
)
async def test_a_wrong_base_url_is_told_the_path_that_is_meant(stack: Stack, path: str, meant: str) -> None:
    status, body, _ = await post(stack, path, data=BODY, headers=JSON)
    assert (404, f"Not Found: there is no {path}; did you mean {meant}?") == (status, body["error"]["message"])


async def test_a_path_like_no_other_is_told_nothing(stack: Stack) -> None:
    _, body, _ = await post(stack, "/v1/weather/today", data=BODY, headers=JSON)
    assert "Not Found: there is no /v1/weather/today" == body["error"]["message"]


@pytest.mark.parametrize("more", [b"", b"Connection: keep-alive\r\n"])
async def test_a_client_of_http_1_0_gets_its_stream(stack: Stack, more: bytes) -> None:
    """Only the end of the connection tells it the end of the stream."""
    body = BODY[:-1] + b', "stream": true}'
    head = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + more + f"Content-Length: {len(body)}\r\n\r\n".encode()
    answer = await raw(stack, head + body)
    assert answer.endswith(b"data: [DONE]\n\n")
    assert b"chunked" not in answer


async def test_a_body_that_does_not_arrive_ends_its_request(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "BODY_S", 0.2)
    answer = await raw(stack, HEAD + CLOSE + b"Content-Length: 50\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"error"' in answer


async def test_a_stream_that_is_silent_for_long_has_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "SILENCE_S", 0.05)
    async with running_stack(tmp_path, router=HTTP, sim={"base_ms": 300.0}) as slow:
        asked = {"model": "demo", "messages": ASK, "max_tokens": 3, "stream": True}
        found = await after_a_silence(slow, lines(slow, asked))
    assert any(each.startswith(": keep-alive\n") for each in found)
    assert found[-1] == "data: [DONE]"


async def test_a_client_that_reads_late_gets_everything_and_others_go_on(stack: Stack) -> None:
    """More than sockets hold: some 6 MB."""
    http = stack.routers[0].http
    assert http is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port, limit=1)
    asked = {"model": "demo", "prompt": "x", "max_tokens": 4000, "logprobs": 20, "stream": True, "ignore_eos": True}
    body = json.dumps(asked).encode()
    writer.write(HEAD.replace(b"chat/", b"") + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    assert (await post(stack, "/v1/chat/completions", data=BODY, headers=JSON))[0] == 200
    await until(lambda: not stack.engines[0].live_ids())
    text = b""
    async with asyncio.timeout(60):
        while b"[DONE]" not in text[-40:]:
            text += await reader.read(1 << 20)
    writer.close()
    assert text.count(b'"finish_reason":"length"') == 1


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", "[::1].evil"])
async def test_a_router_without_keys_answers_to_no_foreign_name(stack: Stack, host: str) -> None:
    status, body, _headers = await post(stack, "/v1/chat/completions", data=BODY, headers={"Host": host, **JSON})
    assert (421, "invalid_request_error") == (status, body["error"]["type"])
    assert "misdirected_request" == body["error"]["code"]
    assert not is_own_name(host)


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:80", "[::1]:8000", "10.1.2.3", "a.localhost"]
)
async def test_addresses_and_localhost_are_its_own_names(host: str) -> None:
    assert is_own_name(host)


async def test_the_body_of_a_stranger_is_not_read(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.toml")
    assert keys.acme
    sections = {"auth": {"keys_file": str(tmp_path / "keys.toml")}}
    async with running_stack(tmp_path, replicas=0, router=HTTP, sections=sections) as strict:
        answer = await raw(strict, HEAD + CLOSE + b"Content-Length: 5000\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 401")


async def test_a_new_certificate_is_shown_to_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_files, "LOOK_S", 0.0)
    authority = Authority()
    sections = tls(tmp_path, authority.issue("first", *LOOPBACK))
    sections["router"] |= HTTP
    async with running_stack(tmp_path, replicas=0, sections=sections, dial=dialer(authority)) as secure:
        http = secure.routers[0].http
        assert http is not None
        assert await asyncio.to_thread(shown_by, http.port) == "first"
        await asyncio.to_thread(authority.issue("second", *LOOPBACK).write, tmp_path, "router")
        assert await asyncio.to_thread(shown_by, http.port) == "second"
        context = trusting(authority.write(tmp_path))
        url = f"https://127.0.0.1:{http.port}/health"
        async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as reply:
            assert reply.status == 200
