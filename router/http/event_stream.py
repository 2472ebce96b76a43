"""Answers as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from aiohttp import HttpVersion11, web
from google.protobuf.message import Message

from penstock.v1 import inference_pb2 as api
from router.call_context import ClientGoneError
from router.http.errors import HttpError

_LOG = logging.getLogger(__name__)

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    # Proxies that compress, such as those of Express and Next.js, would collect the stream otherwise; nginx does so in
    # any case.
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}
SILENCE_S = 15.0
"""Seconds without output after which a comment keeps the connection alive. Proxies cut silent ones, some after 30 s."""
ROWS = 64
"""Parts of the open streams, each of which is looked at in a turn of its own: comments to all of ten thousand at once
would hold up others."""
_KEEP_ALIVE = b": keep-alive\n"
"""Comment. Without an empty line: OpenAI's SDK takes one for an event where events have ids, and fails on it."""
_PARTED = b":\n\n"
"""What parts comments from the event behind them where events have no ids. Readers that split at empty lines, such as
vLLM's benchmark, drop an event that a comment is a part of. It comes with the event, because they strip what they read.
"""
_RETRY = b"retry: 1000\n"
"""Milliseconds after which a client whose connection broke comes back. A part of the first event, for the reason
above."""
_MOST_UNSENT = 1 << 16
"""Bytes that a client may leave unread before its output waits."""


class EventEncoder(Protocol):
    """Encoder of a generation's events in the form of one API."""

    def opened(self, request_id: str) -> None:
        """Learn the cluster's id of the request, before its first event."""
        ...

    def of(self, event: api.StreamGenerateResponse) -> bytes:
        """Return the lines of an event; empty where it has none.

        Raises:
            PenstockError: the event ends the stream with an error.
        """
        ...

    def text(self, index: int, offset: int, token_ids: Sequence[int], text: str) -> bytes:
        """Return the lines of output that is only text: that of one choice, behind its first `offset` tokens."""
        ...

    def failed(self, error: HttpError) -> bytes:
        """Return the lines that end a stream that fails."""
        ...


class Silences:
    """Open streams of one server, which get a comment after a silence. One timer serves all of them."""

    def __init__(self) -> None:
        self._rows: tuple[set[EventStream], ...] = tuple(set() for _ in range(ROWS))
        self._at = self._next = self._open = 0
        """Row to look at, row of the next stream, and number of streams."""
        self._begins: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return self._open

    def add(self, stream: EventStream) -> set[EventStream]:
        """Look at a stream every `SILENCE_S`. Return its row, for `discard`."""
        row = self._rows[self._next]
        row.add(stream)
        self._next = (self._next + 1) % ROWS
        self._open += 1
        if self._open == 1:
            self._plan()
        return row

    def discard(self, stream: EventStream, row: set[EventStream]) -> None:
        """Look at a stream no more."""
        row.remove(stream)
        self._open -= 1
        if not self._open and self._timer is not None:
            self._timer.cancel()

    def _plan(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SILENCE_S / ROWS, self._look)

    def _look(self) -> None:
        self._plan()
        for stream in tuple(self._rows[self._at]):
            try:
                if (begin := stream.keep_alive()) is not None:
                    task = asyncio.ensure_future(begin)
                    self._begins.add(task)
                    task.add_done_callback(self._begins.discard)
            except Exception:  # noqa: BLE001 - other streams share the timer
                _LOG.exception("http.keep_alive_failed")
        self._at = (self._at + 1) % ROWS


SILENCES = web.AppKey("silences", Silences)


class EventStream:
    """One answer. Its status and headers leave with the first line."""

    __slots__ = (
        "_commented", "_encoder", "_headers", "_hint", "_quiet", "_request", "_row", "_transport", "_writing",
        "response",
    )  # fmt: skip

    def __init__(
        self,
        request: web.Request,
        encoder: EventEncoder,
        headers: Callable[[], Mapping[str, str]],
        *,
        goes_on: bool = False,
    ) -> None:
        """`headers` returns more headers once the first line is known. `goes_on`: whether a client whose connection
        broke can come back to the stream.
        """
        self._hint = _RETRY if goes_on else b""
        self.response = web.StreamResponse(headers=_HEADERS)
        self._request, self._encoder = request, encoder
        self._headers: Callable[[], Mapping[str, str]] = headers
        self._commented = self._writing = False
        self._quiet = False
        """Whether nothing was sent since the last look."""
        self._row: set[EventStream] | None = None
        """Streams that are looked at together with this one; None while it is not."""
        self._transport: asyncio.Transport | None = None
        """Connection that the answer has begun on."""

    @property
    def begun(self) -> bool:
        """Whether the status has been sent."""
        return self.response.prepared

    @property
    def chunked(self) -> bool:
        """Whether the client takes chunks, so that lines can be sent outside the coroutine of the call."""
        return self._request.version >= HttpVersion11

    def opened(self, request_id: str) -> None:
        """Learn the cluster's id of the request, before its first event."""
        self._encoder.opened(request_id)
        self.wait()

    def wait(self) -> None:
        """Begin to look at the answer, which a long prompt or line may keep silent before its first event."""
        if self.chunked and self._row is None:
            self._row = self._request.app[SILENCES].add(self)

    async def write(self, event: api.StreamGenerateResponse) -> None:
        """Send an event. Waits while the client is slow to read.

        Raises:
            ClientGoneError: the client is gone.
        """
        if lines := self._encoder.of(event):
            await self.send(lines)

    async def fail(self, error: HttpError) -> None:
        """End with an error, whose status can't be sent any more."""
        await self.send(self._encoder.failed(error))

    async def end(self) -> web.StreamResponse:
        """Send the end of the answer, and return it."""
        self.close()
        await self.response.write_eof()
        return self.response

    def close(self) -> None:
        """Send nothing more outside the coroutine of the call. May be called twice."""
        self._transport = None
        if self._row is not None:
            self._request.app[SILENCES].discard(self, self._row)
            self._row = None

    async def send(self, lines: bytes) -> None:
        """Send lines. Waits while the client is slow to read.

        Raises:
            ClientGoneError: the client is gone.
        """
        self._quiet = False
        self._writing = True
        try:
            if not self.response.prepared:
                self.response.headers.update(self._headers())
                if not self.chunked:
                    # Its end is that of the connection, which the server else keeps for a client that asks for it.
                    self.response.force_close()
                await self.response.prepare(self._request)
                self._transport = self._request.transport
                # Nobody needs them any more, or what they are made from. They would take a kilobyte of every stream.
                self.response.headers.clear()
                self._headers = dict
                self.wait()
                lines = self._hint + lines
            await self.response.write(self._parted(lines))
        except ConnectionError as error:
            # A connection that is reset while its client is slow to read has a plain one.
            raise ClientGoneError(str(error)) from error
        finally:
            self._writing = False

    # --- outside the coroutine of the call ---

    def can_write(self) -> bool:
        """Return whether lines would leave now."""
        transport = self._transport
        return transport is not None and not self._writing and transport.get_write_buffer_size() < _MOST_UNSENT

    def write_now(self, message: Message) -> None:
        """Send an event while `can_write`.

        Raises:
            ValueError: the client is gone.
        """
        if not isinstance(message, api.StreamGenerateResponse):
            raise TypeError(f"a stream has no message {type(message).__name__}")
        if lines := self._encoder.of(message):
            self._send_now(lines)

    def write_text(self, index: int, offset: int, token_ids: Sequence[int], text: str) -> None:
        """Send output that is only text while `can_write`.

        Raises:
            ValueError: the client is gone.
        """
        if lines := self._encoder.text(index, offset, token_ids, text):
            self._send_now(lines)

    def _send_now(self, lines: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ValueError("the client is gone")
        self._quiet = False
        lines = self._parted(lines)
        # The framing of HTTP's chunks, as the server itself does it for what the coroutine writes.
        transport.write(b"%x\r\n%b\r\n" % (len(lines), lines))

    def _parted(self, lines: bytes) -> bytes:
        if lines.startswith(b":"):
            self._commented = not self._hint
        elif self._commented:
            self._commented = False
            return _PARTED + lines
        return lines

    def keep_alive(self) -> Awaitable[None] | None:
        """Send a comment where nothing was sent since the last look. Return what begins the answer where that is left
        to do.
        """
        transport = self._transport
        if self._quiet and not self.begun:
            return self._begin()
        if self._quiet and self.can_write() and transport is not None and not transport.is_closing():
            self._send_now(_KEEP_ALIVE)
        self._quiet = True
        return None

    async def _begin(self) -> None:
        """Send the head with a comment, unless the call has ended or begun meanwhile."""
        if self._row is not None and not self.begun:
            with contextlib.suppress(ClientGoneError):
                await self.send(_KEEP_ALIVE)


class SharedStream:
    """Part of an answer that several calls write. Each waits for its turn."""

    __slots__ = ("_encoder", "_lock", "_whole")

    def __init__(self, whole: EventStream, encoder: EventEncoder, lock: asyncio.Lock) -> None:
        """`lock` is that of all parts."""
        self._whole, self._encoder, self._lock = whole, encoder, lock

    def opened(self, request_id: str) -> None:
        """Learn the cluster's id of the request, before its first event."""
        self._encoder.opened(request_id)
        self._whole.wait()

    async def write(self, event: api.StreamGenerateResponse) -> None:
        """Send an event. Waits while the client is slow to read.

        Raises:
            ClientGoneError: the client is gone.
        """
        if lines := self._encoder.of(event):
            async with self._lock:
                await self._whole.send(lines)
