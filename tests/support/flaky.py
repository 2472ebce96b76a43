"""A TCP relay whose connections the test can break."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.support.waiting import settled_transports


class Relay:
    """Listens on a port of its own and passes bytes to a target until told otherwise."""

    def __init__(self, target: str) -> None:
        self._host, port = target.rsplit(":", 1)
        self._port = int(port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._flow = asyncio.Event()
        self._open.set()
        self._flow.set()
        self.connections = 0
        """Connections accepted so far."""

    async def start(self) -> str:
        """Listen; returns host:port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Reset all connections and refuse new ones until `mend`."""
        self._open.clear()
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        """Accept connections again, and let bytes flow."""
        self._open.set()
        self._flow.set()

    def freeze(self) -> None:
        """Keep connections open but pass nothing on, as a dead peer does."""
        self._flow.clear()

    async def close(self) -> None:
        """Stop."""
        if self._server is not None:
            self._server.close()
        self.cut()
        self._flow.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A connection that was accepted a moment ago has yet to reach `_accept`.
        await settled_transports()
        for writer in list(self._writers):
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Known before the other side is: `cut` and `close` may come meanwhile.
        self._writers.add(writer)
        if not self._open.is_set():
            writer.transport.abort()
            return
        self.connections += 1
        if (task := asyncio.current_task()) is not None:
            self._follow(task)
        try:
            other_reader, other_writer = await asyncio.open_connection(self._host, self._port)
        except BaseException:
            writer.transport.abort()
            raise
        if not self._open.is_set():
            other_writer.transport.abort()
            return
        self._writers.add(other_writer)
        for source, sink in ((reader, other_writer), (other_reader, writer)):
            self._follow(asyncio.create_task(self._pump(source, sink)))

    def _follow(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                await self._flow.wait()
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
        self._writers.discard(sink)
