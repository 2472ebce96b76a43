"""Calls that come while the process has no time for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal

import grpc
import pytest

from cluster.grpc_options import SERVER_OPTIONS
from router.grpc_server import open_server
from tests.support.speed import patience

LIMIT = "grpc.server_max_unrequested_time_in_server"
CALLS = 50
BUSY_S = 2.0


class Clients(threading.Thread):
    """Clients in a thread of their own, which call all at once."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self.connected = threading.Event()
        self.send = threading.Event()
        self.sent = threading.Event()
        self.done: list[grpc.StatusCode] = []

    def run(self) -> None:
        channel: Any
        with grpc.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            grpc.channel_ready_future(channel).result(10 * patience())
            echo = channel.unary_unary("/test.Service/echo")
            self.connected.set()
            self.send.wait(60 * patience())
            calls = [echo.future(b"a", timeout=60 * patience()) for _ in range(CALLS)]
            self.sent.set()
            for call in calls:
                call.exception()
                self.done.append(call.code())


async def echo(request: bytes, _context: Any) -> bytes:
    return request


async def codes(kind: Literal["direct", "aio"], options: Sequence[tuple[str, int]]) -> list[Any]:
    """Return how calls end that come while the server's loop is busy for more than a second."""
    server = open_server(kind, options)
    methods = {"echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    clients = Clients(port)
    clients.start()
    await asyncio.to_thread(clients.connected.wait)
    clients.send.set()  # no turn of the loop from here on, or a fast machine serves the calls at once
    clients.sent.wait()
    time.sleep(BUSY_S)  # noqa: ASYNC251 - the loop has no turns meanwhile
    await asyncio.to_thread(clients.join)
    await server.stop(0.2)
    return clients.done


@pytest.mark.parametrize("kind", ["direct", "aio"])
async def test_a_call_that_is_taken_up_late_is_served(kind: Literal["direct", "aio"]) -> None:
    """Without the option gRPC cancels calls after 30 s, and clients do not try those again."""
    assert dict(SERVER_OPTIONS)[LIMIT] >= 3600
    impatient = [*(one for one in SERVER_OPTIONS if one[0] != LIMIT), (LIMIT, 1)]
    assert grpc.StatusCode.CANCELLED in await codes(kind, impatient)
    assert [grpc.StatusCode.OK] * CALLS == await codes(kind, SERVER_OPTIONS)
