"""The proxy does what its toxics say, and counts it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from tests.chaos.proxy import NOTHING, ChaosProxy, Toxic
from tests.support.waiting import until

DATA = bytes(range(256)) * 40


_ends: list[asyncio.StreamWriter] = []
"""Of a test's connections, without the proxy's own."""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    _ends.append(writer)
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


@contextlib.asynccontextmanager
async def proxied(whose: str = "") -> AsyncIterator[ChaosProxy]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    proxy = ChaosProxy("test", f"127.0.0.1:{port}", lambda _local, _remote: whose)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
        server.close()
        while _ends:
            end = _ends.pop()
            end.close()
            with contextlib.suppress(ConnectionError):
                await end.wait_closed()


async def dial(proxy: ChaosProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    _ends.append(writer)
    return reader, writer


async def test_a_connection_in_a_hole_ends_with_the_proxy() -> None:
    async with proxied() as proxy:
        await proxy.poison(Toxic(blackhole="both"))
        reader, _writer = await dial(proxy)
        await until(lambda: proxy.counters().held > 0)
        await proxy.close()
        # Before this end is closed, too.
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                assert b"" == await reader.read()


async def test_without_a_toxic_bytes_pass() -> None:
    async with proxied() as proxy:
        reader, writer = await dial(proxy)
        writer.write(DATA)
        assert DATA == await reader.readexactly(len(DATA))
        assert 1 == proxy.counters().connections
        assert 2 * len(DATA) == proxy.counters().bytes
        writer.close()


@pytest.mark.parametrize(
    ("toxic", "seconds", "counter"),
    [
        (Toxic(latency_s=0.1), 0.2, "delayed"),
        (Toxic(bytes_per_s=100_000.0), 0.2, "delayed"),
        (Toxic(slice_bytes=7), 0.0, "slices"),
    ],
)
async def test_slow_and_sliced_bytes_arrive_whole(toxic: Toxic, seconds: float, counter: str) -> None:
    async with proxied() as proxy:
        await proxy.poison(toxic)
        reader, writer = await dial(proxy)
        began = time.monotonic()
        writer.write(DATA)
        assert DATA == await reader.readexactly(len(DATA))
        assert seconds <= time.monotonic() - began
        assert getattr(proxy.counters(), counter)
        writer.close()


@pytest.mark.parametrize("direction", ["up", "down", "both"])
async def test_a_blackhole_holds_bytes_until_it_is_healed(direction: str) -> None:
    async with proxied() as proxy:
        reader, writer = await dial(proxy)
        writer.write(b"a")
        assert b"a" == await reader.readexactly(1)
        await proxy.poison(Toxic(blackhole=direction))  # type: ignore[arg-type]
        writer.write(b"b")
        await until(lambda: proxy.counters().held > 0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), 0.05)
        await proxy.poison(NOTHING)
        assert b"b" == await reader.readexactly(1)
        writer.close()


async def test_resets_and_refusals_reach_the_client() -> None:
    async with proxied() as proxy:
        reader, writer = await dial(proxy)
        writer.write(b"a")
        await reader.readexactly(1)
        assert 1 == proxy.reset()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        await proxy.poison(Toxic(refuse=True))
        reader, writer = await dial(proxy)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        assert (1, 1) == (proxy.counters().resets, proxy.counters().refused)
        writer.close()


async def test_a_toxic_for_one_peer_leaves_the_others_alone() -> None:
    async with proxied(whose="router-1") as proxy:
        await proxy.poison(Toxic(blackhole="both"), "router-0")
        reader, writer = await dial(proxy)
        writer.write(b"a")
        assert b"a" == await asyncio.wait_for(reader.readexactly(1), 5)
        assert (0, 1) == (proxy.counters("router-0").connections, proxy.counters("router-1").connections)
        writer.close()
