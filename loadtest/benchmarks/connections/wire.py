"""Connections that are far lighter than a real client's: they write one request, and count the messages of its answer.

They parse no more of HTTP/1.1, or of HTTP/2, than that needs, so thousands of them leave the machine to the router.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, cast

from penstock.v1 import inference_pb2 as api

Api = Literal["http", "grpc"]
APIS: tuple[Api, ...] = ("http", "grpc")

_OK = b"HTTP/1.1 200 "
_EVENT = b"data: {"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_HEAD = 9
"""Bytes of a frame's head in HTTP/2."""
_CREDIT = 1 << 14
"""Bytes after which the peer may send as many again."""
_READABLE = re.compile(rb"[ -~]{8,}")
"""Text in the fields of a header, which gRPC's core does not compress."""


@dataclass(slots=True)
class CrowdTally:
    """Counts over all connections of a process."""

    open: int = 0
    """Connections that are open."""
    begun: int = 0
    """Streams whose first message has come."""
    messages: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    """Connections and streams that ended before they were closed here, by cause."""
    gaps_s: dict[str, list[float]] = field(default_factory=dict)
    """Seconds between two messages of a stream, by API; empty where nobody watches."""


class LightStream(asyncio.Protocol):
    """Connection with one stream."""

    __slots__ = ("_gaps", "_last_at", "_request", "_tally", "_transport", "left")

    def __init__(self, request: bytes, tally: CrowdTally, gaps: list[float] | None) -> None:
        self._request = request
        self._tally = tally
        self._gaps = gaps
        self._last_at = 0.0
        self._transport: asyncio.Transport | None = None
        self.left = False
        """Whether this end has closed the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)
        self._tally.open += 1

    def connection_lost(self, error: Exception | None) -> None:
        """Count the end."""
        self._tally.open -= 1
        if not self.left:
            self.ended(type(error).__name__ if error is not None else "closed by the router")

    def ended(self, cause: str) -> None:
        """Count an end that nobody asked for, once, and close."""
        if not self.left:
            self._tally.ends[cause] += 1
        self.close()

    def came(self, messages: int) -> None:
        """Count messages."""
        now = time.perf_counter()
        self._tally.messages += messages
        if not self._last_at:
            self._tally.begun += 1
        elif self._gaps is not None:
            self._gaps.append(now - self._last_at)
        self._last_at = now

    def send(self, data: bytes) -> None:
        """Send bytes while the connection is open."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Leave."""
        self.left = True
        if self._transport is not None:
            self._transport.abort()


class HttpStream(LightStream):
    """Stream of server-sent events."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        """Count events."""
        if not self._last_at and not data.startswith(_OK):
            self.ended(refusal_of(data))
        elif messages := data.count(_EVENT):
            self.came(messages)
        elif not self._last_at:
            self.came(0)


class GrpcStream(LightStream):
    """Connection of one call, or of several that share it."""

    __slots__ = ("_begun", "_rest", "_unread")

    def __init__(self, request: bytes, tally: CrowdTally, gaps: list[float] | None) -> None:
        super().__init__(request, tally, gaps)
        self._rest = b""
        self._unread: dict[int, int] = {0: 0}
        """Bytes that came since the peer was last allowed more, by call; 0 is the whole connection."""
        self._begun: set[int] = set()

    def data_received(self, data: bytes) -> None:
        """Count messages, and answer what HTTP/2 wants to have answered."""
        data, at = self._rest + data, 0
        while at + _HEAD <= len(data):
            size = int.from_bytes(data[at : at + 3], "big")
            if at + _HEAD + size > len(data):
                break
            call = int.from_bytes(data[at + 5 : at + _HEAD], "big")
            self._frame(data[at + 3], data[at + 4], call, data[at + _HEAD : at + _HEAD + size])
            at += _HEAD + size
        self._rest = data[at:]

    def _frame(self, kind: int, flags: int, call: int, body: bytes) -> None:
        if kind == _DATA and body:
            self._came(call, len(body))
        elif kind == _SETTINGS and not flags & _ACK:
            self.send(frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self.send(frame(_PING, _ACK, 0, body))
        elif kind == _HEADERS and flags & _END_STREAM:
            self.ended(f"end of the call: {b' '.join(_READABLE.findall(body)).decode()[:200]}")
        elif kind in (_RESET, _GOAWAY):
            self.ended("reset" if kind == _RESET else "goaway")

    def _came(self, call: int, size: int) -> None:
        for whose in (0, call):
            self._unread[whose] = unread = self._unread.get(whose, 0) + size
            if unread >= _CREDIT:
                self.send(frame(_WINDOW, 0, whose, unread.to_bytes(4, "big")))
                self._unread[whose] = 0
        if call not in self._begun:
            self._begun.add(call)
            self._tally.begun += len(self._begun) > 1
        # The gaps of calls that share a connection are not told apart: those that are watched have their own.
        self.came(1)


def refusal_of(answer: bytes) -> str:
    """Return the status of an answer over HTTP, and what its body says of the error."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head[:60].decode("latin-1").split("\r")[0]
    try:
        error = json.loads(body)["error"]
        return f"{status}: {error['code']}: {error['message']}"
    except (ValueError, KeyError, TypeError):
        return status


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _literal(name: str, value: str) -> bytes:
    # A header that is neither indexed nor compressed.
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def grpc_request(model: str, prompt: str, tokens: int, calls: int = 1) -> bytes:
    """Return everything that a client sends for its streams, from the preface on."""
    request = api.StreamGenerateRequest()
    request.generate.model = model
    request.generate.prompt.text = prompt
    request.generate.sampling.max_tokens = tokens
    request.generate.sampling.ignore_eos = True
    request.flush_interval.SetInParent()
    message = request.SerializeToString()
    fields = {
        ":method": "POST",
        ":scheme": "https",
        ":path": "/penstock.v1.InferenceService/StreamGenerate",
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    headers = b"".join(_literal(name, value) for name, value in fields.items())
    body = b"\0" + len(message).to_bytes(4, "big") + message
    sent = [_PREFACE, frame(_SETTINGS, 0, 0, b"")]
    for call in range(1, 2 * calls, 2):
        sent += frame(_HEADERS, _END_HEADERS, call, headers), frame(_DATA, _END_STREAM, call, body)
    return b"".join(sent)


def http_request(model: str, prompt: str, tokens: int) -> bytes:
    """Return the request of one stream."""
    fields = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    body = json.dumps(fields).encode()
    kind = "Content-Type: application/json"
    head = ("POST /v1/completions HTTP/1.1", "Host: localhost", kind, f"Content-Length: {len(body)}", "", "")
    return "\r\n".join(head).encode() + body


def request_of(kind: Api, model: str, prompt: str, tokens: int, calls: int = 1) -> bytes:
    """Return the bytes of a request for one stream, or over gRPC for several that share a connection."""
    return http_request(model, prompt, tokens) if kind == "http" else grpc_request(model, prompt, tokens, calls)
