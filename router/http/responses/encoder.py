"""Encoder of a stream that is told while it is made. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.v1 import inference_pb2 as api
from router.call_context import text_event
from router.http.chunks import queue_place
from router.http.errors import HttpError
from router.http.responses.answer import GOES_ON, broken, ended
from router.http.responses.events import Events, error_event
from router.http.responses.pieces import pieces_of


class ResponseEncoder:
    """Encoder of one stream. It leaves the last event to the caller, who may have to store the response before."""

    def __init__(self, events: Events, now: Callable[[], float]) -> None:
        """`now` returns the time in seconds since 1970."""
        self.note: Callable[[str, bytes], None] = lambda _request_id, _token: None
        """Called with the cluster's id of the request, and its newest resume token or b""."""
        self.response: dict[str, Any] | None = None
        """The response as it ended; None while it has not."""
        self.request_id = ""
        """The cluster's id of the request; empty until the first event."""
        self.error = ""
        """Code of the error that ended the stream; empty for none."""
        self.started = False
        self._events = events
        self._now = now

    def opened(self, request_id: str) -> None:
        """Learn the cluster's id of the request."""
        self.request_id = request_id
        self.note(request_id, b"")

    def of(self, event: api.StreamGenerateResponse) -> bytes:
        """Return the lines of an event; empty where it has none."""
        events = self._events
        match event.WhichOneof("event"):
            case "delta":
                return "".join([self._start(), *map(events.add, pieces_of(event.delta))]).encode()
            case "queued":
                return events.begin(queued=False).encode() + queue_place(event.queued)
            case "resumed":
                self.note(self.request_id, event.resumed.resume_token)
                return b""
            case "started":
                self.note(self.request_id, event.started.resume_token)
                return self._start().encode()
            case "finished":
                lines = self._start()
                more, self.response = ended(events, event.finished, int(self._now()))
                return (lines + more).encode()
            case _:
                return b""

    def text(self, index: int, offset: int, token_ids: Sequence[int], text: str) -> bytes:
        """Return the lines of output that is only text."""
        if self.started and text:
            # Nearly every token.
            return self._events.text(text).encode()
        return self.of(text_event(index, offset, token_ids, text))

    def last(self) -> bytes:
        """Return the last event."""
        return b"" if self.response is None else self._events.final(self.response).encode()

    def failed(self, error: HttpError) -> bytes:
        """Return the last lines of a stream that fails."""
        self.error = error.code
        if error.code in GOES_ON:
            return error.retry_line() + self._events.failed(error).encode()
        lines, self.response = broken(self._events, error, int(self._now()))
        return (lines + self._events.final(self.response)).encode()

    def _start(self) -> str:
        if self.started:
            return ""
        self.started = True
        return self._events.begin(queued=False) + self._events.started()


class ToldEncoder:
    """Encoder of a stream whose events exist already; only an error is missing."""

    def __init__(self, last: Callable[[], int]) -> None:
        """`last` returns the number up to which everything was told."""
        self._last = last

    def opened(self, request_id: str) -> None:
        """Do nothing."""

    def of(self, event: api.StreamGenerateResponse) -> bytes:
        """Return nothing."""
        return b""

    def text(self, index: int, offset: int, token_ids: Sequence[int], text: str) -> bytes:
        """Return nothing."""
        return b""

    def failed(self, error: HttpError) -> bytes:
        """Return the event of an error. The stream may be asked for again."""
        return error.retry_line() + error_event(error, self._last()).encode()
