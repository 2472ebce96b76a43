"""Ray's dashboard as a server that ends in the middle of an answer."""

from __future__ import annotations

import asyncio

import pytest

from cluster.bootstrap.serve_api import ServeApi
from cluster.errors import BootstrapError


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\nno", b"?\r\n"],
)
async def test_an_answer_that_breaks_off_is_an_error_of_the_dashboard(reply: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BootstrapError, match="GET /api/serve/applications/: "):
            await ServeApi(f"http://127.0.0.1:{port}", None, 5.0).status()
