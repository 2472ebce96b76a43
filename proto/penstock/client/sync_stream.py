"""A stream of the client for threads."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

import grpc

from penstock.client.connection import OpenStream
from penstock.client.stream_state import StreamState
from penstock.values.errors import (
    CancelledError,
    from_rpc_error,
)
from penstock.values.events import Event
from penstock.values.requests import ResumePoint


class Stream:
    """Iterator over a stream's events. Closing it, or leaving its `with`, cancels the request.

    A stream that ends without an error gave every token once and in order, and `Finished` last; this is checked. When
    its router fails, it continues at another one (see `RetryPolicy.resume_for`), with a further `Queued` or `Started`.
    """

    def __init__(self, open_call: OpenStream, state: StreamState) -> None:
        self._open_call = open_call
        self._state = state
        self._call: Any = None
        self._opened = False
        self._cancelled = threading.Event()
        self._closed = threading.Event()

    @property
    def request_id(self) -> str:
        """The cluster's id of the request; empty before the first event."""
        return self._state.request_id

    @property
    def resume_point(self) -> ResumePoint | None:
        """Position at which another stream may continue after this one broke; None before the first event."""
        return self._state.resume_point

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        try:
            while not self._closed.is_set():
                event = self._read()
                if event is not None:
                    return event
        except BaseException:
            self.close()
            raise
        raise StopIteration

    def close(self) -> None:
        """Cancel the request unless it has ended. May be called twice, and from another thread."""
        self._closed.set()
        self.cancel()

    def cancel(self) -> None:
        """Cancel the request. Its reader gets CancelledError; after `close` it gets the end of iteration."""
        self._cancelled.set()
        # Read once: the reader thread drops a call that broke.
        call = self._call
        if call is not None:
            call.cancel()

    def _read(self) -> Event | None:
        if self._call is None:
            if self._closed.is_set():
                return None
            if self._cancelled.is_set():
                # Cancelled while there was no call: before the first one, or between two.
                raise CancelledError("the call was cancelled here", grpc.StatusCode.CANCELLED)
            again, self._opened = self._opened, True
            self._call = self._open_call(self._state.request(), self._state.time_left(), again=again)
            if self._cancelled.is_set():
                self._call.cancel()  # Another thread cancelled the stream while the call was being made.
        try:
            message = next(self._call, None)
        except grpc.RpcError as error:
            self._recover(error)
            return None
        if message is None:
            self._closed.set()
            self._state.end()
            return None
        return self._state.accept(message)

    def _recover(self, error: grpc.RpcError) -> None:
        if self._closed.is_set():
            return
        failure = from_rpc_error(error)
        wait = self._state.failed(failure)
        if wait is None:
            raise failure from error
        self._call = None
        self._cancelled.wait(wait)
