"""A stream of the client for threads."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self

import grpc

from penstock.client.connection import OpenStream
from penstock.client.explain import Attempt
from penstock.client.stream_state import LEFT, StreamState
from penstock.values.errors import CancelledError, from_rpc_error
from penstock.values.events import Event
from penstock.values.requests import ResumePoint


class Stream:
    """Iterator over a stream's events. Leaving its `for` loop, its `with` block or `close` cancels the request.

    `break`, `return` and exceptions leave a loop. To stop reading and go on later, take events with `next(stream)`, or
    keep the iterator: `events = iter(stream)`.

    A stream that ends without an error gave every token once and in order, and `Finished` last; this is checked. When
    its router fails, it continues at another one (see `RetryPolicy.resume_for`), with a further `Queued` or `Started`.
    """

    def __init__(self, open_call: OpenStream, state: StreamState) -> None:
        self._open_call = open_call
        self._state = state
        self._call: Any = None
        self._attempt: Attempt | None = None
        self._opened = False
        self._cancelled = threading.Event()
        self._closed = threading.Event()
        self._left = False
        """Whether a loop over it was left before its end."""
        self._reading = threading.Lock()
        """Lock of the thread that reads. gRPC fails the call of two, which would end the stream of both."""

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

    def __iter__(self) -> Iterator[Event]:
        return _Loop(self)

    def __del__(self) -> None:
        self._leave()

    def __next__(self) -> Event:
        try:
            while not self._closed.is_set():
                event = self._read_alone()
                if event is not None:
                    return event
        except BaseException:
            self.close()
            raise
        raise StopIteration

    def close(self) -> None:
        """Cancel the request unless it has ended. May be called twice, and while the stream is read."""
        self._closed.set()
        self.cancel()

    def cancel(self) -> None:
        """Cancel the request. Its reader gets CancelledError; after `close` it gets the end of iteration."""
        self._cancelled.set()
        # Read once: the reader thread drops a call that broke.
        call = self._call
        if call is not None:
            call.cancel()

    def _leave(self) -> None:
        """Cancel the request if it has not ended, as `break` does. A later reader gets CancelledError."""
        if not self._closed.is_set():
            self._left = True
            self.cancel()

    def _read_alone(self) -> Event | None:
        with self._reading:
            return None if self._closed.is_set() else self._read()

    def _read(self) -> Event | None:
        if self._left:
            raise CancelledError(LEFT, grpc.StatusCode.CANCELLED)
        if self._call is None:
            if self._closed.is_set():
                return None
            if self._cancelled.is_set():
                # Cancelled while there was no call: before the first one, or between two.
                raise CancelledError("the call was cancelled here", grpc.StatusCode.CANCELLED)
            again, self._opened = self._opened, True
            self._begin(again=again)
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

    def _begin(self, *, again: bool) -> None:
        def begin() -> None:
            self._call, self._attempt = self._open_call(self._state.request(), self._state.attempts, again=again)
            if self._cancelled.is_set():
                self._call.cancel()  # The stream was cancelled while the call was being made.

        if threading.current_thread() is not threading.main_thread():
            begin()
            return
        # Ctrl-C strikes the main thread anywhere. Within gRPC it would leave a call that has begun and that nobody can
        # cancel. So another thread makes the call.
        begun: Future[None] = Future()
        context = contextvars.copy_context()
        threading.Thread(target=_run, args=(begun, partial(context.run, begin)), daemon=True).start()
        begun.result()

    def _recover(self, error: grpc.RpcError) -> None:
        if self._closed.is_set():
            return
        failure = from_rpc_error(error)
        if self._attempt is not None:
            failure = self._attempt.explained(failure, begun=self._state.begun)
        wait = self._state.failed(failure)
        if wait is None:
            raise failure from error
        self._call = None
        self._cancelled.wait(wait)


class _Loop:
    """Iterator of one loop over a stream. Python drops it when the loop is left, which cancels the request."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        return next(self._stream)

    def __del__(self) -> None:
        self._stream._leave()


def _run(done: Future[None], work: Callable[[], None]) -> None:
    try:
        work()
        done.set_result(None)
    except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
        done.set_exception(error)
