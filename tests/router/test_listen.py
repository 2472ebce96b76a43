"""Ports of HTTP servers."""

from __future__ import annotations

import errno

import aiohttp
import pytest
from aiohttp import web

from router.listen import listen


async def _hello(request: web.Request) -> web.Response:
    return web.Response(text="hello")


async def _running() -> web.AppRunner:
    app = web.Application()
    app.router.add_get("/", _hello)
    runner = web.AppRunner(app)
    await runner.setup()
    return runner


async def test_every_address_is_of_both_families() -> None:
    runner = await _running()
    try:
        await listen(runner, "::", 0)
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as session:
            for host in ("127.0.0.1", "[::1]"):
                async with session.get(f"http://{host}:{port}/") as answer:
                    assert "hello" == await answer.text()
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("host", ["::", "127.0.0.1"])
async def test_a_port_in_use_is_told_or_another_one_is_taken(host: str) -> None:
    first, second = await _running(), await _running()
    try:
        await listen(first, host, 0)
        port = first.addresses[0][1]
        with pytest.raises(OSError, match=r"(?i)in use") as caught:
            await listen(second, host, port)
        assert errno.EADDRINUSE == caught.value.errno
        await listen(second, host, port, any_port=True)
        assert port != second.addresses[0][1]
    finally:
        await first.cleanup()
        await second.cleanup()


async def test_several_processes_may_share_a_port() -> None:
    first, second = await _running(), await _running()
    try:
        await listen(first, "::", 0, shared=True)
        port = first.addresses[0][1]
        await listen(second, "::", port, shared=True)
        assert port == second.addresses[0][1]
    finally:
        await first.cleanup()
        await second.cleanup()
