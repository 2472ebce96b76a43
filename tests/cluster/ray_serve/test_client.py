"""Ray's dashboard as a server that ends in the middle of an answer, and tokens that are none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from cluster.errors import BootstrapError
from cluster.ray_serve.client import ServeApi
from tests.support.waiting import settled_transports


@contextlib.asynccontextmanager
async def serving(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """Answer on a port of this machine; no connection is left behind."""
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
    await settled_transports()


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\nno", b"?\r\n"],
)
async def test_an_answer_that_breaks_off_is_an_error_of_the_dashboard(reply: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    async with serving(answer) as port:
        with pytest.raises(BootstrapError, match="GET /api/serve/applications/: "):
            await ServeApi(f"http://127.0.0.1:{port}", None, 5.0).status()


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b"<html>Sign in</html>",
        b'{"applications": null}',
        b'{"applications": {"penstock-demo": null}}',
        b'{"applications": {"penstock-demo": {"deployments": null}}}',
        b'{"applications": {"penstock-demo": {"deployments": {"replica": {"target_num_replicas": "many"}}}}}',
    ],
)
async def test_an_answer_of_another_form_is_an_error_of_the_dashboard(text: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
        writer.close()

    async with serving(answer) as port:
        with pytest.raises(BootstrapError, match="lists no applications"):
            await ServeApi(f"http://127.0.0.1:{port}", None, 5.0).status()


@pytest.mark.parametrize("content", [b"one\ntwo\n", b"\xff\xfe", None])
async def test_a_token_file_that_is_none_is_an_error_that_names_it(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "token"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(BootstrapError, match=str(path)) as caught:
        await ServeApi("http://127.0.0.1:1", path, 5.0).status()
    assert "two" not in str(caught.value)


async def test_no_token_is_sent_to_a_ray_that_has_none(tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + b'{"applications": {}}')
        writer.close()

    path = tmp_path / "token"
    async with serving(answer) as port:
        api = ServeApi(f"http://127.0.0.1:{port}", path, 5.0)
        await api.status()
        path.write_text("secret\n")
        await api.status()

    assert b"Authorization" not in heads[0]
    assert b"Authorization: Bearer secret\r\n" in heads[1]
