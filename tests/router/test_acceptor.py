"""New connections take turns with everything else, and those that send nothing hold up nobody."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.trust.verifying import trusting
from router import acceptor
from router.acceptor import Acceptor
from tests.support.certificates import LOOPBACK, Authority
from tests.support.waiting import until

Connect = Callable[..., list[socket.socket]]


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class Counting(Acceptor):
    """Counts what begins in each turn of the loop, instead of the handshakes."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.turn = 0
        self.begun: list[int] = []
        self._turned()

    def _turned(self) -> None:
        self.turn += 1
        self._loop.call_soon(self._turned)

    async def _open(self, accepted: socket.socket) -> None:
        self.begun.append(self.turn)
        accepted.close()


class Short(socket.socket):
    """A socket of a process that is once short of files."""

    refusals = 1

    def accept(self) -> tuple[socket.socket, Any]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


def bound(kind: type[socket.socket] = socket.socket) -> socket.socket:
    made = kind(socket.AF_INET, socket.SOCK_STREAM)
    made.bind(("127.0.0.1", 0))
    return made


def tls(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the context of a server and that of a client who trusts it."""
    authority = Authority()
    files = authority.issue("router", *LOOPBACK).write(folder, "router")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*files)
    return serving, trusting(authority.write(folder))


@asynccontextmanager
async def accepting(
    context: ssl.SSLContext | None, kind: type[Acceptor] = Acceptor, sockets: Sequence[socket.socket] = ()
) -> AsyncIterator[Any]:
    server = kind(sockets or (bound(),), Echo, context)
    server.start()
    try:
        yield server
    finally:
        server.close()
        await server.wait_closed()


def port_of(server: Acceptor) -> int:
    return int(server.sockets[0].getsockname()[1])


async def echo(port: int, context: ssl.SSLContext | None) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(b"hello")
        return await reader.readexactly(5)
    finally:
        writer.close()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connect clients, each of which sends some bytes at once."""
    opened: list[socket.socket] = []

    def connect(port: int, count: int, data: bytes = b"") -> list[socket.socket]:
        for _ in range(count):
            opened.append(socket.create_connection(("127.0.0.1", port)))
            opened[-1].sendall(data)
            opened[-1].setblocking(False)
        return opened[-count:]

    yield connect
    for client in opened:
        client.close()


def closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("secure", [False, True], ids=["in the clear", "TLS"])
async def test_a_connection_is_served(tmp_path: Path, secure: bool) -> None:
    serving, trusting = tls(tmp_path)
    async with accepting(serving if secure else None) as server:
        answers = await asyncio.gather(*(echo(port_of(server), trusting if secure else None) for _ in range(40)))
        assert [b"hello"] * 40 == answers


async def test_a_turn_of_the_loop_begins_two_handshakes(tmp_path: Path, connect: Connect) -> None:
    async with accepting(tls(tmp_path)[0], Counting) as server:
        connect(port_of(server), 30, b"hello")
        await until(lambda: len(server.begun) == 30)
        assert 2 == max(Counter(server.begun).values())


async def test_clients_that_send_nothing_hold_up_nobody(tmp_path: Path, connect: Connect) -> None:
    serving, trusting = tls(tmp_path)
    async with accepting(serving) as server:
        silent = connect(port_of(server), 100)
        assert b"hello" == await echo(port_of(server), trusting)
        assert not any(closed(client) for client in silent)


async def test_a_client_that_sends_nothing_is_left(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "_FIRST_S", 0.05)
    async with accepting(tls(tmp_path)[0]) as server:
        silent = connect(port_of(server), 3)
        await until(lambda: all(closed(client) for client in silent))
        later = connect(port_of(server), 1)
        await until(lambda: closed(later[0]))


async def test_of_too_many_silent_clients_the_oldest_make_room(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "_SILENT", 3)
    async with accepting(tls(tmp_path)[0]) as server:
        clients = connect(port_of(server), 5)
        await until(lambda: closed(clients[1]))
        assert [True, True, False, False, False] == [closed(client) for client in clients]


async def test_a_full_line_waits_in_the_kernel_and_is_served(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "_IN_LINE", 4)
    async with accepting(tls(tmp_path)[0], Counting) as server:
        connect(port_of(server), 50, b"hello")
        await until(lambda: len(server.begun) == 50)


async def test_a_handshake_that_fails_ends_alone(tmp_path: Path, connect: Connect) -> None:
    serving, trusting = tls(tmp_path)
    async with accepting(serving) as server:
        wrong = connect(port_of(server), 1, b"GET / HTTP/1.1\r\n\r\n")
        await until(lambda: closed(wrong[0]))
        assert b"hello" == await echo(port_of(server), trusting)


async def test_after_a_refusal_of_the_system_it_accepts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "_AGAIN_S", 0.01)
    async with accepting(None, sockets=[bound(Short)]) as server:
        assert b"hello" == await echo(port_of(server), None)
        assert 0 == server.sockets[0].refusals


async def test_the_end_closes_what_has_no_protocol_yet(tmp_path: Path, connect: Connect) -> None:
    server = Acceptor((bound(),), Echo, tls(tmp_path)[0])
    server.start()
    silent = connect(port_of(server), 3)
    await until(lambda: len(server._silent) == 3)
    server.close()
    await server.wait_closed()
    assert all(closed(client) for client in silent)
    assert () == server.sockets
