"""Messages of one turn of the event loop leave a connection together, and nobody's socket is closed for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from cluster.grpc_options import SERVER_OPTIONS
from router.grpc_server import connections, open_server
from router.grpc_server.connections import (
    Address,
    Connections,
    address_of,
    most_files,
    peer_of,
    set_cork,
    sockets,
)
from router.grpc_server.server import DirectServer
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_CORK"), reason="this system has no corks")

PEERS = {
    "ipv4:10.1.2.3:4321": ("10.1.2.3", 4321),
    "ipv6:%5B::1%5D:80": ("::1", 80),
    "ipv6:[2001:db8::7]:80": ("2001:db8::7", 80),
    "ipv6:[::ffff:10.1.2.3]:80": ("10.1.2.3", 80),
    "ipv6:%5Bfe80::1%25eth0%5D:80": ("fe80::1", 80),
    "unix:/tmp/socket": None,
    "unix:": None,
    "ipv4:nobody:1": None,
    "ipv4:10.1.2.3": None,
    "": None,
}


@dataclass
class Pair:
    """A TCP connection of which this process has both ends."""

    ours: socket.socket
    theirs: socket.socket

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self.ours.getsockname()[1])

    @property
    def peer(self) -> Address:
        """What the client's end is called."""
        host, port = self.theirs.getsockname()[:2]
        return host, port

    def arrived(self) -> bytes:
        """Return what the client could read now."""
        with contextlib.suppress(BlockingIOError):
            return self.theirs.recv(1000)
        return b""

    def close(self) -> None:
        """Close both ends."""
        self.ours.close()
        self.theirs.close()


@contextlib.contextmanager
def connected(host: str = "127.0.0.1") -> Iterator[Pair]:
    """Connect."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        theirs = socket.create_connection(server.getsockname()[:2])
        ours, _ = server.accept()
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    theirs.setblocking(False)
    pair = Pair(ours, theirs)
    try:
        yield pair
    finally:
        pair.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with connected() as found:
        yield found


@dataclass
class Corks:
    """Notes each cork and its end."""

    told: list[tuple[int, bool]] = field(default_factory=list)

    def set_cork(self, file: int, *, on: bool) -> bool:
        """Do it."""
        self.told.append((file, on))
        return set_cork(file, on=on)


@pytest.fixture
def corks(monkeypatch: pytest.MonkeyPatch) -> Corks:
    found = Corks()
    monkeypatch.setattr(connections, "set_cork", found.set_cork)
    return found


@pytest.mark.parametrize(("text", "address"), PEERS.items())
def test_what_grpc_calls_a_peer_is_read(text: str, address: Address | None) -> None:
    assert address == address_of(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_socket_is_found_by_its_peer_and_stays_open(host: str) -> None:
    with connected(host) as pair, connected(host) as other:
        for _ in range(3):
            assert {pair.peer: pair.ours.fileno()} == sockets([pair.port], range(most_files()))
        assert {} == sockets([], range(most_files()))
        assert pair.peer == peer_of(pair.ours.fileno(), [pair.port, other.port])
        assert peer_of(pair.theirs.fileno(), [pair.port]) is None
        pair.ours.sendall(b"open")
        assert b"open" == pair.arrived()


def test_files_that_are_no_connections_are_left_alone(tmp_path: Any) -> None:
    local, end = socket.socketpair()
    with (tmp_path / "file").open("w") as file, socket.socket() as lonely, local, end:
        for one in (file.fileno(), lonely.fileno(), local.fileno(), 999_999):
            assert peer_of(one, [0, 1]) is None
            os.fstat(file.fileno())
        assert not set_cork(file.fileno(), on=True)
        assert not set_cork(local.fileno(), on=True)
        assert not set_cork(999_999, on=True)
        file.write("still open")


def opened(pair: Pair, calls: int = 2) -> tuple[Connections, Any]:
    table = Connections(asyncio.get_running_loop(), [pair.port])
    host, port = pair.peer
    for _ in range(calls):
        connection = table.joined(f"ipv4:{host}:{port}")
    return table, connection


async def test_messages_of_a_turn_leave_together(pair: Pair, corks: Corks) -> None:
    _, connection = opened(pair)
    for word in (b"a", b"b", b"c"):
        connection.sending()
        pair.ours.sendall(word)

    assert b"a" == pair.arrived()
    await asyncio.sleep(0)
    assert b"bc" == pair.arrived()
    # After a turn of many the first one waits, too.
    for word in (b"d", b"e"):
        connection.sending()
        pair.ours.sendall(word)
    assert b"" == pair.arrived()
    await asyncio.sleep(0)
    assert b"de" == pair.arrived()
    assert [True, False] * 2 == [on for _, on in corks.told]


async def test_a_message_that_is_alone_is_not_held_back(pair: Pair, corks: Corks) -> None:
    _, connection = opened(pair)
    for _ in range(5):
        connection.sending()
        pair.ours.sendall(b"a")
        assert b"a" == pair.arrived()
        await asyncio.sleep(0)
    assert [] == corks.told


async def test_a_single_call_is_not_worth_a_look(pair: Pair, corks: Corks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "sockets", lambda ports, files: pytest.fail("looked"))
    table, connection = opened(pair, calls=1)
    for _ in range(5):
        connection.sending()
    assert [] == corks.told
    table.left("ipv4:{}:{}".format(*pair.peer))
    assert 0 == len(table)


async def test_a_socket_that_is_gone_is_forgotten(pair: Pair, corks: Corks) -> None:
    _, connection = opened(pair)
    pair.close()
    for _ in range(3):
        connection.sending()
    await asyncio.sleep(0)
    assert 1 == len(corks.told)
    assert connection.file is None


async def test_the_number_of_a_closed_socket_is_not_taken_for_another(pair: Pair) -> None:
    table, connection = opened(pair)
    name, number = "ipv4:{}:{}".format(*pair.peer), connection.file
    for _ in range(2):
        table.left(name)
    pair.close()
    with connected() as other:
        # Files get the lowest number that is free.
        assert number in (other.ours.fileno(), other.theirs.fileno())
        for _ in range(2):
            connection = table.joined(name)
        assert connection.file is None


async def test_searches_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((0.0, 0.0, 0.1, 5.0, 10.15, 10.15, 10.25, 10.3))
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: next(times)))
    searches: list[object] = []

    def noted(ports: object, files: object) -> dict[Address, int]:
        searches.append(ports)
        return {}

    monkeypatch.setattr(connections, "sockets", noted)
    monkeypatch.setattr(connections, "most_files", lambda: 10)
    table = Connections(asyncio.get_running_loop(), [1])
    for _ in range(5):
        table.joined("ipv4:10.0.0.1:1")
    # One took 0.1 s, a hundredth of the time until the next; the first call alone asks for none.
    assert 2 == len(searches)


async def test_a_search_among_many_files_takes_several_turns(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_PER_TURN", 1)
    sizes: list[int] = []

    def noted(ports: Any, files: range) -> dict[Address, int]:
        sizes.append(len(files))
        return sockets(ports, files)

    monkeypatch.setattr(connections, "sockets", noted)
    _, connection = opened(pair)
    assert connection.file is None
    await until(lambda: connection.file is not None)
    assert pair.ours.fileno() == connection.file
    assert {1} == set(sizes)
    assert most_files() == len(sizes)


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]", "[::]"])
async def test_streams_of_one_client_share_packets(address: str, corks: Corks) -> None:
    """Through gRPC, whose connections end as before."""
    turn, streams = asyncio.Event(), 8

    async def steps(request: bytes, context: Any) -> None:
        for number in range(20):
            await turn.wait()
            await context.write(b"%d" % number)
            turn.clear()

    async def play() -> None:
        while True:
            turn.set()
            await asyncio.sleep(0.002)

    handler = grpc.unary_stream_rpc_method_handler(steps)
    server = open_server("direct", SERVER_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", {"steps": handler}),))
    port = server.add_insecure_port(f"{address}:0")
    await server.start()
    assert isinstance(server, DirectServer)
    # IPv4 reaches a server on all addresses as a part of IPv6.
    target = f"127.0.0.1:{port}" if address == "[::]" else f"{address}:{port}"
    async with asyncio.TaskGroup() as group, grpc.aio.insecure_channel(target) as channel:
        playing = group.create_task(play())

        async def listen() -> list[bytes]:
            return [message async for message in channel.unary_stream("/test.Service/steps")(b"")]

        for got in await asyncio.gather(*(listen() for _ in range(streams))):
            assert [b"%d" % number for number in range(20)] == got
        playing.cancel()

    assert {True, False} == {on for _, on in corks.told}
    assert sum(on for _, on in corks.told) == sum(not on for _, on in corks.told)
    await until(lambda: not server.open_connections)
    # Only the core has them, and closes them.
    await until(lambda: not sockets([port], range(most_files())))
    await server.stop(0.2)
