"""Messages on a plain stream, each behind its length. Both ends of a link use this.

`replica.proto` describes the form.
"""

from __future__ import annotations

import asyncio
from typing import cast

PREFACE = b"penstock-link/1\n"
"""First bytes of both ends."""
ALPN = "penstock-link/1"
"""Name of the protocol in TLS handshakes."""
MAX_FRAME = 64 << 20
"""Most bytes of a message; frames and tokenizers are far smaller."""
MAX_FIRST = 64 << 10
"""Most bytes of a message from a peer that has proved nothing yet."""
TURN_BYTES = 64 << 10
"""Bytes after which the messages that came together wait for the next turn of the loop, so that others get theirs."""
_LENGTH = 4


class FrameError(Exception):
    """Bytes that are no message."""


class OtherProtocolError(FrameError):
    """A peer that does not speak this protocol."""


class FrameProtocol(asyncio.Protocol):
    """One end of a connection. A turn of the loop that reads handles all messages that came, without waking a task.

    Subclasses take messages in `on_message` and the end in `on_lost`. An error of either breaks the connection.
    """

    def __init__(self) -> None:
        self.most = MAX_FIRST
        """Most bytes of a message now."""
        self.lost = False
        """Whether the connection is over."""
        self.full = False
        """Whether the peer reads slowly and nothing more should be sent now."""
        self.failure: Exception | None = None
        """Error that ended the connection."""
        self._met = False
        """Whether the peer's preface came."""
        self._over = False
        """Whether what comes is not handled any more."""
        self._buffer = bytearray()
        self._holds = 0
        self._transport: asyncio.Transport | None = None

    # --- for subclasses -----------------------------------------------------------------------------------------------

    def on_met(self) -> None:
        """Note that the peer speaks this protocol."""

    def on_stranger(self, head: bytes) -> None:
        """Take the first bytes of a peer that speaks another protocol."""
        raise OtherProtocolError(f"the peer speaks another protocol; it began with {head[:16]!r}")

    def on_message(self, payload: bytes) -> None:
        """Take a message."""
        raise NotImplementedError

    def on_writable(self) -> None:
        """Note that `full` has ended."""

    def on_lost(self) -> None:
        """Note the end of the connection; `failure` has its error."""

    # --- sending ------------------------------------------------------------------------------------------------------

    @property
    def transport(self) -> asyncio.Transport:
        """Transport of the connection."""
        if self._transport is None:
            raise ConnectionError("there is no connection yet")
        return self._transport

    def send_preface(self) -> None:
        """Tell the peer that this end speaks this protocol."""
        self.transport.write(PREFACE)

    def send(self, payload: bytes) -> None:
        """Send a message. Once the connection is over, do nothing.

        Raises:
            FrameError: the message is too large. Nothing was sent.
        """
        if len(payload) > MAX_FRAME:
            raise FrameError(f"a message of {len(payload)} bytes; at most {MAX_FRAME} fit")
        if not self.lost:
            self.transport.writelines((len(payload).to_bytes(_LENGTH, "big"), payload))

    @property
    def unsent(self) -> int:
        """Number of bytes that wait to be sent."""
        return 0 if self.lost else self.transport.get_write_buffer_size()

    def break_off(self, failure: Exception | None = None) -> None:
        """End the connection at once."""
        self.failure = self.failure or failure
        if not self.lost and self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """End the connection after everything was sent. Nothing more is read."""
        self._over = True
        if not self.lost:
            self.transport.close()

    # --- reading ------------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Read nothing until `go_on`. Each hold needs its own."""
        self._holds += 1
        if self._holds == 1 and not self.lost:
            self.transport.pause_reading()

    def go_on(self) -> None:
        """End one hold."""
        self._holds -= 1
        if not self._holds and not self.lost:
            self.transport.resume_reading()
            self._take()

    def _take(self) -> None:
        try:
            self._take_messages()
        except Exception as error:  # noqa: BLE001 - `on_lost` reports it
            self.break_off(error)

    def _take_messages(self) -> None:
        buffer = self._buffer
        if not self._met and not self._meet():
            return
        done = 0
        while len(buffer) >= _LENGTH and not self._holds and not self._ended:
            end = _LENGTH + int.from_bytes(buffer[:_LENGTH], "big")
            if end - _LENGTH > self.most:
                raise FrameError(f"a message of {end - _LENGTH} bytes; at most {self.most} may come")
            if len(buffer) < end:
                return
            with memoryview(buffer) as view:
                payload = bytes(view[_LENGTH:end])
            # Removing the head of a bytearray copies nothing.
            del buffer[:end]
            self.on_message(payload)
            done += end
            if done >= TURN_BYTES and len(buffer) >= _LENGTH:
                self.hold()
                asyncio.get_running_loop().call_soon(self.go_on)

    @property
    def _ended(self) -> bool:
        return self.lost or self._over or self.failure is not None

    def _meet(self) -> bool:
        head = bytes(self._buffer[: len(PREFACE)])
        if head == PREFACE:
            self._met = True
            del self._buffer[: len(PREFACE)]
            self.on_met()
        elif not PREFACE.startswith(head):
            found = bytes(self._buffer)
            self._buffer.clear()
            self.on_stranger(found)
        return self._met

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._buffer += data
        if not self._holds:
            self._take()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.failure = self.failure or exc
        self.on_lost()
