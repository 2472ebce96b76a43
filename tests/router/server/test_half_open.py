"""Peers whose network went away without a word are found by keepalive, at both ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from cluster.grpc_options import SERVER_OPTIONS
from penstock.client.connection import CHANNEL_OPTIONS
from tests.chaos.proxy import ChaosProxy, Toxic

SCALE = 50
"""Production's half a minute and ten seconds, divided."""
METHOD = "/test/Stream"


def faster(options: Any) -> list[tuple[str, int]]:
    """Take options as they are, but for their times."""
    return [(name, value // SCALE if name.endswith("_ms") else value) for name, value in options]


@asynccontextmanager
async def serving(options: Any, ended: asyncio.Event) -> AsyncIterator[int]:
    """Serve a stream that never ends, and note when its client is gone."""

    async def stream(_request: bytes, context: Any) -> None:
        try:
            while True:
                await context.write(b"x" * 20)
                await asyncio.sleep(0.02)
        finally:
            ended.set()

    server = grpc.aio.server(options=options)
    methods = {"Stream": grpc.unary_stream_rpc_method_handler(stream)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


async def exhausted(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def begun(channel: Any) -> Any:
    """Open a stream. Where the machine halts, the pings of these short times end a connection that is alive."""
    while True:
        call = channel.unary_stream(METHOD)(b"")
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call.read()
            return call


@pytest.mark.slow
@pytest.mark.parametrize("end", ["server", "client"])
async def test_a_peer_that_vanished_is_found(end: str) -> None:
    ended = asyncio.Event()
    server = faster(SERVER_OPTIONS) if end == "server" else [("grpc.http2.min_ping_interval_without_data_ms", 100)]
    client = faster(CHANNEL_OPTIONS) if end == "client" else []
    async with serving([*server, ("grpc.http2.max_ping_strikes", 0)], ended) as port:
        proxy = ChaosProxy("network", f"127.0.0.1:{port}")
        await proxy.start()
        try:
            async with grpc.aio.insecure_channel(proxy.address, options=client) as channel:
                call = await begun(channel)
                ended.clear()
                await proxy.poison(Toxic(blackhole="both"))
                async with asyncio.timeout(10):
                    if end == "server":
                        await ended.wait()
                        return
                    with pytest.raises(grpc.aio.AioRpcError) as lost:
                        await exhausted(call)
            assert grpc.StatusCode.UNAVAILABLE is lost.value.code()
        finally:
            await proxy.close()
