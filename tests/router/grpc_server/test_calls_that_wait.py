"""Calls of methods that can wait: the core has a line of its own for them, and no other call waits behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from cluster.grpc_options import SERVER_OPTIONS
from router.grpc_server import open_server
from router.grpc_server.public import CAN_WAIT
from router.grpc_server.server import DirectServer
from router.server import SERVICES
from tests.support.waiting import until

OLD, NEW = "/test.Service/old", "/test.Service/new"


class Drained(DirectServer):
    """Server without a core. Its turns are made by hand, and it notes which calls it begins in each."""

    def __init__(self, new: int, old: int) -> None:
        """`new` calls have arrived behind `old` ones that can wait."""
        super().__init__((), (OLD,))
        self._loop, self._arrivals = Mock(), Mock()
        self._arrivals.poll.return_value = Mock(completion_type=None)
        self._herd = iter(range(old))
        for _ in range(8):
            self._ask_apart(OLD)
        self._fresh.extend(Mock(tag=NEW, success=True, number=f"new {number}") for number in range(new))
        self.begun: list[list[str]] = []

    def _ask(self) -> None:
        pass

    def _ask_apart(self, method: str) -> None:
        if (number := next(self._herd, None)) is not None:
            self._fresh.append(Mock(tag=method, success=True, number=f"old {number}"))

    def _begin(self, event: Any) -> None:
        self.begun[-1].append(event.number)

    def turns(self) -> list[list[str]]:
        more = False
        while not self.begun or self._loop.call_soon.called:
            self._loop.call_soon.reset_mock()
            self.begun.append([])
            self._accept(more)
            more = True
        return self.begun


def test_a_new_call_is_the_first_of_its_turn() -> None:
    turns = Drained(new=1, old=100).turns()

    assert ["new 0", *(f"old {number}" for number in range(7))] == turns[0]
    assert [f"old {number}" for number in range(100)] == [name for turn in turns for name in turn if name != "new 0"]
    assert 8 == max(map(len, turns))


def test_calls_that_can_wait_go_on_beside_new_ones() -> None:
    turns = Drained(new=15, old=20).turns()

    assert ["old 0", "old 1"] == [turn[-1] for turn in turns[:2]]
    assert 35 == sum(map(len, turns))


class Held(DirectServer):
    """Server whose turns begin when it is let go. It notes the order in which calls begin."""

    def __init__(self, kept: bool = False) -> None:
        super().__init__(SERVER_OPTIONS, (OLD,))
        self.held = True
        self.kept = kept
        """Whether calls that can wait go on waiting."""
        self.begun: list[str] = []

    def let_go(self) -> None:
        self.held = False
        self._accept(True)

    def _accept(self, more: bool = False) -> None:
        if not self.held:
            super()._accept(more)

    def _begin(self, event: Any) -> None:
        if event.tag == OLD and self.kept:
            self._aside.append(event)
            return
        self.begun.append(event.tag)
        super()._begin(event)

    def _ask_apart(self, method: str) -> None:
        if self.held or not self.kept:
            super()._ask_apart(method)


async def echo(request: bytes, context: Any) -> bytes:
    assert context.method in (OLD, NEW)
    return request


def handlers() -> grpc.GenericRpcHandler[Any, Any]:
    methods = {name: grpc.unary_unary_rpc_method_handler(echo) for name in ("old", "new")}
    return grpc.method_handlers_generic_handler("test.Service", methods)


async def opened(server: DirectServer) -> int:
    server.add_generic_rpc_handlers((handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return port


async def test_the_core_gives_a_new_call_before_those_that_came_earlier() -> None:
    server = Held()
    port = await opened(server)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        old = [channel.unary_unary(OLD)(b"%d" % number) for number in range(200)]
        new = channel.unary_unary(NEW)(b"new")
        # One connection brings them in order, so the new one is the last. The core keeps all but the first eight.
        await until(lambda: len(server._fresh) == 9)
        server.let_go()
        assert [b"new", *(b"%d" % number for number in range(200))] == await asyncio.gather(new, *old)
    await server.stop(0.2)
    assert 0 == server.begun.index("arrival")
    assert 201 == len(server.begun)


@pytest.mark.parametrize("kind", ["direct", "aio"])
async def test_either_server_answers_them(kind: Any) -> None:
    server = open_server(kind, SERVER_OPTIONS, (OLD,))
    methods = {name: grpc.unary_unary_rpc_method_handler(plain) for name in ("old", "new")}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        calls = [channel.unary_unary(OLD if number % 3 else NEW)(b"%d" % number) for number in range(60)]
        assert [b"%d" % number for number in range(60)] == await asyncio.gather(*calls)
    await server.stop(0.2)


async def plain(request: bytes, context: Any) -> bytes:
    return request


async def test_a_stop_ends_those_that_wait() -> None:
    """Also those that the core still has."""
    server = Held(kept=True)
    port = await opened(server)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        calls = [channel.unary_unary(OLD)(b"") for _ in range(20)]
        await until(lambda: len(server._fresh) == 8)
        server.let_go()
        await until(lambda: len(server._aside) == 8)
        await server.stop(0.01)
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError):
                await call


def paths() -> Iterator[str]:
    for service in SERVICES:
        for method in service.methods:
            yield f"/{service.full_name}/{method.name}"


def test_the_public_methods_that_can_wait_are_there() -> None:
    assert set(CAN_WAIT) <= set(paths())
