"""A TCP proxy whose faults are switched while it runs, as a whole or for the connections of one process."""

from __future__ import annotations

import asyncio
import socket
import struct
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Literal

from cluster.lifecycle import TaskOwner
from tests.support.waiting import settled_transports

_CHUNK = 1 << 16
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends RST instead of FIN."""


@dataclass(frozen=True, slots=True)
class Toxic:
    """What a proxy does to bytes; by default nothing."""

    latency_s: float = 0.0
    """Added in each direction. Bytes keep their order, and later ones do not wait for earlier ones."""
    bytes_per_s: float = 0.0
    """Bandwidth in each direction; 0 is unbounded."""
    slice_bytes: int = 0
    """Pass on so many bytes at a time, each as a segment of its own; 0 passes what was read."""
    blackhole: Literal["", "up", "down", "both"] = ""
    """Hold bytes, ends and new connections in these directions, as a network does that drops every packet; "up" is from
    who connected. They go on when the toxic is taken away, as TCP's own repeats would make them."""
    refuse: bool = False
    """Reset new connections."""

    def __str__(self) -> str:
        words = [f"{each.name}={value}" for each in fields(self) if (value := getattr(self, each.name)) != each.default]
        return ", ".join(words) or "nothing"

    def holds(self, direction: str) -> bool:
        """Whether bytes of this direction stay here."""
        return self.blackhole in (direction, "both")


NOTHING = Toxic()


@dataclass(slots=True)
class Counters:
    """Prove what a proxy did."""

    connections: int = 0
    bytes: int = 0
    """Passed on."""
    delayed: int = 0
    """Chunks that were held up by latency or bandwidth."""
    slices: int = 0
    held: int = 0
    """Bytes, ends and connections that came while a blackhole held them."""
    resets: int = 0
    refused: int = 0


class ChaosProxy:
    """Listens on a port of its own. The target can move; connections that exist stay with the old one.

    Args:
        name: for error messages.
        whose: names the process that connects from a port of this machine to the proxy's; "" where nobody needs to
            know.
    """

    def __init__(self, name: str, target: str = "", whose: Callable[[int, int], str] | None = None) -> None:
        self.name = name
        self.target = target
        self.port = 0
        self._whose = whose
        self._toxics: dict[str, Toxic] = {}
        self._counters: dict[str, Counters] = {}
        self._changed = asyncio.Condition()
        self._pairs: dict[tuple[asyncio.StreamWriter, asyncio.StreamWriter], str] = {}
        self._transports: weakref.WeakSet[asyncio.WriteTransport] = weakref.WeakSet()
        """All that may still be open, also those that were told to close."""
        self._accepting: set[asyncio.Task[None]] = set()
        """Those that hold connections which are not passed on yet."""
        self._owner = TaskOwner(f"proxy.{name}")
        self._server: asyncio.Server | None = None
        self._closed = False

    @property
    def address(self) -> str:
        """host:port to connect to."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen; what connects before there is a target is closed."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        # A connection that was accepted a moment ago has yet to reach `_accept`.
        await settled_transports()
        # Connections that a blackhole holds would wait for ever.
        await self.heal()
        await asyncio.gather(*self._accepting)
        await self._owner.close()
        # Also those that only close when somebody reads what they still have to send.
        for transport in list(self._transports):
            transport.abort()
        await settled_transports()

    # --- faults -------------------------------------------------------------------------------------------------------

    async def poison(self, toxic: Toxic, peer: str = "") -> None:
        """Switch to a toxic for one peer's connections, or for all."""
        if peer:
            self._toxics[peer] = toxic
        else:
            self._toxics = {"": toxic}
        async with self._changed:
            self._changed.notify_all()

    async def heal(self) -> None:
        """Pass everything on again."""
        self._toxics = {}
        async with self._changed:
            self._changed.notify_all()

    def reset(self, peer: str = "") -> int:
        """Break the connections of a peer, or all, with RST; returns how many."""
        pairs = [pair for pair, owner in self._pairs.items() if peer in ("", owner)]
        for pair in pairs:
            _abort(*pair)
            del self._pairs[pair]
            self._of(peer).resets += 1
            if peer:
                self._of("").resets += 1
        return len(pairs)

    def counters(self, peer: str = "") -> Counters:
        """Return what was done to a peer, or to all."""
        return self._of(peer)

    def _of(self, peer: str) -> Counters:
        return self._counters.setdefault(peer, Counters())

    def _count(self, peer: str, name: str, amount: int = 1) -> None:
        for key in {peer, ""}:
            counters = self._of(key)
            setattr(counters, name, getattr(counters, name) + amount)

    def _toxic(self, peer: str) -> Toxic:
        return self._toxics.get(peer) or self._toxics.get("") or NOTHING

    # --- bytes --------------------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._transports.add(writer.transport)
        if self._closed:
            _abort(writer)
            return
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)
        await self._pass_on(reader, writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("peername")[1]
        peer = self._whose(port, self.port) if self._whose is not None else ""
        self._count(peer, "connections")
        if self._toxic(peer).refuse:
            self._count(peer, "refused")
            _abort(writer)
            return
        await self._pass_hole(peer, "up")
        try:
            host, port = self.target.rsplit(":", 1)
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except (OSError, ValueError):
            _abort(writer)
            return
        self._transports.add(far_writer.transport)
        for each in (writer, far_writer):
            each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = (writer, far_writer)
        if self._closed:
            _abort(*pair)
            return
        self._pairs[pair] = peer
        self._owner.spawn(self._pump(reader, far_writer, peer, "up", pair), "up")
        self._owner.spawn(self._pump(far_reader, writer, peer, "down", pair), "down")

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        peer: str,
        direction: str,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1024)
        sender = self._owner.spawn(self._send(waiting, sink, peer, direction), "send")
        end = _abort
        try:
            while True:
                data = await source.read(_CHUNK)
                toxic = self._toxic(peer)
                await waiting.put((loop.time() + toxic.latency_s, data))
                if toxic.latency_s:
                    self._count(peer, "delayed")
                if not data:
                    break
            await sender
            end = _close
        except OSError:
            # A reset is passed on, once a blackhole lets it.
            await self._pass_hole(peer, direction)
        finally:
            sender.cancel()
            self._pairs.pop(pair, None)
            end(*pair)

    async def _send(
        self, waiting: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter, peer: str, direction: str
    ) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while True:
                due, data = await waiting.get()
                if (wait := due - loop.time()) > 0:
                    await asyncio.sleep(wait)
                await self._pass_hole(peer, direction, len(data))
                if not data:
                    return
                for piece in self._pieces(data, peer):
                    await self._throttle(peer, len(piece))
                    sink.write(piece)
                    await sink.drain()
                    self._count(peer, "bytes", len(piece))

    async def _pass_hole(self, peer: str, direction: str, size: int = 0) -> None:
        if not self._toxic(peer).holds(direction):
            return
        self._count(peer, "held", max(1, size))
        async with self._changed:
            await self._changed.wait_for(lambda: not self._toxic(peer).holds(direction))

    def _pieces(self, data: bytes, peer: str) -> list[bytes]:
        size = self._toxic(peer).slice_bytes
        if not size or len(data) <= size:
            return [data]
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        self._count(peer, "slices", len(pieces))
        return pieces

    async def _throttle(self, peer: str, size: int) -> None:
        rate = self._toxic(peer).bytes_per_s
        if rate:
            self._count(peer, "delayed")
            await asyncio.sleep(size / rate)
        elif self._toxic(peer).slice_bytes:
            # A turn of the loop, or the kernel would join the pieces again.
            await asyncio.sleep(0)


def _abort(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        with suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        writer.transport.abort()


def _close(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
