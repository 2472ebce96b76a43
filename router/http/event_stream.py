"""Answers as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from aiohttp import ClientConnectionResetError, HttpVersion11, web
from google.protobuf.message import Message

from penstock.v1 import inference_pb2 as api
from router.call_context import ClientGoneError
from router.http.errors import HttpError

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # Proxies such as nginx would collect the stream otherwise.
    "X-Accel-Buffering": "no",
}
SILENCE_S = 15.0
"""Seconds without output after which a comment keeps the connection alive. Proxies cut silent ones, some after 30 s."""
_KEEP_ALIVE = b": keep-alive\n"
"""Comment. Without an empty line: OpenAI's SDK takes one for an event where events have ids, and fails on it."""
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


class EventStream:
    """One answer. Its status and headers leave with the first line."""

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
        self._writing = False
        self._quiet = True
        """Whether nothing was sent since the last look."""
        self._timer: asyncio.TimerHandle | None = None
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
        if self._timer is not None:
            self._timer.cancel()

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
                await self.response.prepare(self._request)
                self._transport = self._request.transport
                # Nobody needs them any more, or what they are made from. They would take a kilobyte of every stream.
                self.response.headers.clear()
                self._headers = dict
                self._timer = asyncio.get_running_loop().call_later(SILENCE_S, self._look)
                lines = self._hint + lines
            await self.response.write(lines)
        except ClientConnectionResetError as error:
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
        # The framing of HTTP's chunks, as the server itself does it for what the coroutine writes.
        transport.write(b"%x\r\n%b\r\n" % (len(lines), lines))

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SILENCE_S, self._look)
        if self._quiet and self.chunked and self.can_write() and not self._transport.is_closing():  # type: ignore[union-attr]
            self._send_now(_KEEP_ALIVE)
        self._quiet = True


class SharedStream:
    """Part of an answer that several calls write. Each waits for its turn."""

    def __init__(self, whole: EventStream, encoder: EventEncoder, lock: asyncio.Lock) -> None:
        """`lock` is that of all parts."""
        self._whole, self._encoder, self._lock = whole, encoder, lock

    def opened(self, request_id: str) -> None:
        """Learn the cluster's id of the request, before its first event."""
        self._encoder.opened(request_id)

    async def write(self, event: api.StreamGenerateResponse) -> None:
        """Send an event. Waits while the client is slow to read.

        Raises:
            ClientGoneError: the client is gone.
        """
        if lines := self._encoder.of(event):
            async with self._lock:
                await self._whole.send(lines)
