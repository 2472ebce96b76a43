"""A stream of the client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import grpc

from penstock.client.connection import OpenStream
from penstock.client.explain import Attempt
from penstock.client.stream_state import LEFT, StreamState
from penstock.values.errors import CancelledError, from_rpc_error
from penstock.values.events import Event
from penstock.values.requests import ResumePoint


class AsyncStream:
    """Iterator over a stream's events. Leaving its `async for` loop, its `async with` block or `aclose` cancels the
    request.

    `break`, `return` and exceptions leave a loop. To stop reading and go on later, take events with `anext(stream)`, or
    keep the iterator: `events = aiter(stream)`.

    A stream that ends without an error gave every token once and in order, and `Finished` last; this is checked. When
    its router fails, it continues at another one (see `RetryPolicy.resume_for`), with a further `Queued` or `Started`.
    """

    def __init__(self, open_call: OpenStream, state: StreamState) -> None:
        self._open_call = open_call
        self._state = state
        self._call: Any = None
        self._attempt: Attempt | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened = False
        self._cancelled = asyncio.Event()
        self._closed = False
        self._left = False
        """Whether a loop over it was left before its end."""

    @property
    def request_id(self) -> str:
        """The cluster's id of the request; empty before the first event."""
        return self._state.request_id

    @property
    def resume_point(self) -> ResumePoint | None:
        """Position at which another stream may continue after this one broke; None before the first event."""
        return self._state.resume_point

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Event]:
        return _Loop(self)

    def __del__(self) -> None:
        self._leave()

    async def __anext__(self) -> Event:
        try:
            while not self._closed:
                event = await self._read()
                if event is not None:
                    return event
        except BaseException:
            await self.aclose()
            raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Cancel the request unless it has ended. May be called twice, and while the stream is read."""
        self._closed = True
        self.cancel()

    def cancel(self) -> None:
        """Cancel the request. Its reader gets CancelledError; after `aclose` it gets the end of iteration."""
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()

    def _leave(self) -> None:
        """Cancel the request if it has not ended, as `break` does. A later reader gets CancelledError."""
        if self._closed or self._left:
            return
        self._left = True
        if self._loop is None or self._loop is _running_loop():
            self.cancel()
        elif not self._loop.is_closed():
            # The garbage collector runs on any thread, and a call may be cancelled on its own only.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.cancel)

    async def _read(self) -> Event | None:
        if self._left:
            raise CancelledError(LEFT, grpc.StatusCode.CANCELLED)
        if self._call is None:
            if self._cancelled.is_set():
                # Cancelled while there was no call: before the first one, or between two.
                raise CancelledError("the call was cancelled here", grpc.StatusCode.CANCELLED)
            again, self._opened = self._opened, True
            self._loop = asyncio.get_running_loop()
            self._call, self._attempt = self._open_call(self._state.request(), self._state.attempts, again=again)
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            await self._recover(error)
            return None
        except asyncio.CancelledError:
            if task_is_cancelled():
                raise
            if self._closed:
                return None
            raise CancelledError("the call was cancelled here", grpc.StatusCode.CANCELLED) from None
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # missing in the stubs
            self._closed = True
            self._state.end()
            return None
        return self._state.accept(message)

    async def _recover(self, error: grpc.RpcError) -> None:
        if self._closed:
            return
        failure = from_rpc_error(error)
        if self._attempt is not None:
            failure = self._attempt.explained(failure, begun=self._state.begun)
        wait = self._state.failed(failure)
        if wait is None:
            raise failure from error
        self._call = None
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._cancelled.wait()


class _Loop:
    """Iterator of one loop over a stream. Python drops it when the loop is left, which cancels the request. gRPC's own
    call can't be relied on for that: since grpcio 1.83 it keeps itself alive until it ends.
    """

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._stream)

    def __del__(self) -> None:
        self._stream._leave()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def task_is_cancelled() -> bool:
    """Return whether the running task itself is being cancelled.

    grpc raises asyncio.CancelledError also in a task that only waits for a call that was cancelled locally.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
