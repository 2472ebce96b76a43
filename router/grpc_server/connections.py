"""The connections of calls. Messages of one turn of the event loop leave a connection together.

gRPC's core writes each message to the socket at once. A step of an engine makes a message for each of its streams, and
many streams of one application share a connection. Each message would be a packet of its own, with its cost in the
network stack and a wake-up of the reader. So the socket is corked (see tcp(7)) until the end of the turn: from the
second message of the turn on, or from the first where the last turn had many.

The core does not tell which socket belongs to a connection. So this module searches the process' open files by address,
some in each turn of the loop, and keeps only the number of the file. The core may close the socket at any time, and the
number may then belong to another one. A cork on the wrong socket ends within the turn like any other, and after 200 ms
in any case. At worst a packet leaves later.
"""

from __future__ import annotations

import asyncio
import ctypes
import ipaddress
import socket
import time
from collections.abc import Collection, Iterable
from urllib.parse import unquote

_CALLS = 2
"""Least number of open calls for which a search for the socket pays."""
_MANY = 3
"""Least number of messages in a turn after which the next turn is corked from its first message."""
_SHARE = 0.01
"""Largest part of the time that searches may take; each looks at all open files of the process."""
_PER_TURN = 512
"""Files that a turn of the event loop looks at. A router may have twenty thousand."""
_STATUS = "/proc/self/status"
_TABLE = "FDSize:"
_CORK: int | None = getattr(socket, "TCP_CORK", None)
"""The socket option; None where the system has none."""

Address = tuple[str, int]
"""IP address and port. An IPv4 address is never written as a part of IPv6."""


class Connection:
    """Connection of a client, for as long as it has open calls."""

    __slots__ = ("_corked", "_eager", "_loop", "_sent", "calls", "file")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.calls = 0
        """Open calls."""
        self.file: int | None = None
        """File number of the socket; None while it is not known."""
        self._loop = loop
        self._sent = 0
        """Messages in this turn."""
        self._eager = False
        """Whether the last turn had many messages."""
        self._corked = False

    def sending(self) -> None:
        """Note that a message is about to leave; cork the socket where others leave with it."""
        if self.file is None or self.calls < _CALLS:
            return
        self._sent += 1
        if self._sent == 1:
            self._loop.call_soon(self._turn_ends)
            if not self._eager:
                return
        if not self._corked:
            self._corked = set_cork(self.file, on=True)
            if not self._corked:
                self.file = None

    def _turn_ends(self) -> None:
        self._eager = self._sent >= _MANY
        self._sent = 0
        if self._corked:
            self._corked = False
            if self.file is not None:
                set_cork(self.file, on=False)


class Connections:
    """Open client connections of one server. Not thread-safe: only the loop's thread uses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ports: Collection[int]) -> None:
        """Start without connections; `ports` are those that the server listens on."""
        self._loop = loop
        self._ports = ports
        self._open: dict[str, Connection] = {}
        self._found: dict[Address, int] = {}
        """File numbers that the last search found, by the client's address."""
        self._search_at = 0.0
        self._searched: dict[Address, int] | None = None
        """What the search under way has found; None while there is none."""
        self._next_file = self._last_file = 0
        self._spent_s = 0.0

    def __len__(self) -> int:
        """Return the number of connections with open calls."""
        return len(self._open)

    def joined(self, peer: str) -> Connection:
        """Add a call, and return the connection of its peer. `peer` is in gRPC's notation."""
        connection = self._open.get(peer)
        if connection is None:
            connection = self._open[peer] = Connection(self._loop)
        connection.calls += 1
        if connection.calls >= _CALLS and connection.file is None and (address := address_of(peer)) is not None:
            connection.file = self._socket_of(address)
        return connection

    def left(self, peer: str) -> None:
        """Remove a call that has ended."""
        connection = self._open[peer]
        connection.calls -= 1
        if not connection.calls:
            del self._open[peer]

    def _socket_of(self, peer: Address) -> int | None:
        if _CORK is None:
            return None
        file = self._found.get(peer)
        if file is not None and peer_of(file, self._ports) == peer:
            return file
        self._found.pop(peer, None)
        if self._searched is None and time.monotonic() >= self._search_at:
            self._searched, self._next_file, self._last_file, self._spent_s = {}, 0, most_files(), 0.0
            self._search()
        return self._found.get(peer)

    def _search(self) -> None:
        if self._searched is None:
            return
        began, last = time.monotonic(), min(self._next_file + _PER_TURN, self._last_file)
        self._searched.update(sockets(self._ports, range(self._next_file, last)))
        self._next_file = last
        ended = time.monotonic()
        self._spent_s += ended - began
        if last < self._last_file:
            self._loop.call_soon(self._search)
            return
        self._found, self._searched = self._searched, None
        self._search_at = ended + self._spent_s / _SHARE
        for peer, connection in self._open.items():
            if connection.calls >= _CALLS and connection.file is None and (address := address_of(peer)) is not None:
                connection.file = self._found.get(address)


def address_of(peer: str) -> Address | None:
    """Parse gRPC's name of a peer, such as ipv4:10.0.0.1:4321 or ipv6:%5B::1%5D:4321; None for one without a port."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _plain(host.strip("[]"), int(port))


def host_of(peer: str) -> str:
    """Return the address in gRPC's name of a peer, without a port; empty for one that has none."""
    address = address_of(peer)
    return address[0] if address is not None else ""


def sockets(ports: Collection[int], files: Iterable[int]) -> dict[Address, int]:
    """Return which of these files are sockets with one of these local ports, by the address of the peer."""
    return {peer: file for file in files if (peer := peer_of(file, ports)) is not None}


def most_files() -> int:
    """Return a number that is above those of all open files of this process; 0 where the system does not tell."""
    try:
        with open(_STATUS, encoding="ascii") as status:
            return next((int(line.removeprefix(_TABLE)) for line in status if line.startswith(_TABLE)), 0)
    except OSError:
        return 0


def peer_of(file: int, ports: Collection[int]) -> Address | None:
    """Return the address of a socket's peer; None where the file is no TCP connection to one of these ports."""
    try:
        found = socket.socket(fileno=file)
    except OSError:
        return None
    try:
        if found.family not in (socket.AF_INET, socket.AF_INET6) or found.getsockname()[1] not in ports:
            return None
        host, port = found.getpeername()[:2]
        return _plain(host, port)
    except OSError:
        return None
    finally:
        # gRPC closes the socket, not this object.
        found.detach()


def _plain(host: str, port: int) -> Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), port


_LIBC = ctypes.PyDLL(None)
_ON, _OFF = ctypes.byref(ctypes.c_int(1)), ctypes.byref(ctypes.c_int(0))
_SIZE = ctypes.sizeof(ctypes.c_int)


def set_cork(file: int, *, on: bool) -> bool:
    """Cork a socket, or send what has gathered; return False where the file is no such socket.

    It takes the file number, because a socket object would close the file at the end of its life.
    """
    return not _LIBC.setsockopt(file, socket.IPPROTO_TCP, _CORK, _ON if on else _OFF, _SIZE)
