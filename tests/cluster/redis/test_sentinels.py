"""Sentinels are asked one after another, each for a part of the time in which this process runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from redis import exceptions

from cluster.redis.connections import ConnectionSource
from tests.support.halt import answered_in_halt


async def masters(port: int) -> bytes:
    """Return a sentinel's answer to SENTINEL MASTERS."""
    fields = ("name", "main", "ip", "127.0.0.1", "port", str(port), "flags", "master", "num-other-sentinels", "1")
    return f"*1\r\n*{len(fields)}\r\n".encode() + b"".join(b"$%d\r\n%b\r\n" % (len(f), f.encode()) for f in fields)


async def nothing(_port: int) -> bytes:
    return b""


async def late(port: int) -> bytes:
    return await answered_in_halt(await masters(port), 0.8)


@contextlib.asynccontextmanager
async def sentinel(answer: Callable[[int], Awaitable[bytes]]) -> AsyncIterator[int]:
    """Run a server that greets every connection, and answers SENTINEL with what `answer` returns for its port. Yield
    the port.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            while count := await reader.readline():
                words = [await word(reader) for _ in range(int(count[1:]))]
                writer.write(await answer(port) if words[0] == b"SENTINEL" else b"+OK\r\n")

    server = await asyncio.start_server(serve, "127.0.0.1")
    port: int = server.sockets[0].getsockname()[1]
    try:
        yield port
    finally:
        server.close()


async def word(reader: asyncio.StreamReader) -> bytes:
    length = int((await reader.readline())[1:])
    return (await reader.readexactly(length + 2))[:-2]


@contextlib.asynccontextmanager
async def connected(timeout_s: float, *ports: int) -> AsyncIterator[Any]:
    """Connect to the primary that sentinels know."""
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    source = ConnectionSource(f"redis+sentinel://{hosts}/main", timeout_s, "key")
    connection = source.make()
    try:
        await connection.connect()
        yield connection
    finally:
        await connection.disconnect(nowait=True)
        await source.close()


async def test_an_answer_that_came_while_this_process_stood_still_counts() -> None:
    async with sentinel(late) as port, connected(0.8, port) as connection:
        assert port == connection.port


async def test_a_silent_sentinel_leaves_time_to_ask_the_next() -> None:
    async with sentinel(nothing) as silent, sentinel(masters) as port, connected(3.0, silent, port) as found:
        assert port == found.port


async def test_sentinels_that_are_all_silent_are_an_error_in_time() -> None:
    async with sentinel(nothing) as silent, asyncio.timeout(20):
        with pytest.raises(exceptions.ConnectionError, match=r"No master.*TimeoutError"):
            async with connected(0.2, silent):
                pass
