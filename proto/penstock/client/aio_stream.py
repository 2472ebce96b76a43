"""A stream of the client for asyncio."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import grpc

from penstock.client.connection import OpenStream
from penstock.client.stream_state import StreamState
from penstock.values.errors import CancelledError, from_rpc_error
from penstock.values.events import Event
from penstock.values.requests import ResumePoint


class AsyncStream:
    """Iterator over a stream's events. Closing it, or leaving its `async with`, cancels the request.

    A stream that ends without an error gave every token once and in order, and `Finished` last; this is checked. When
    its router fails, it continues at another one (see `RetryPolicy.resume_for`), with a further `Queued` or `Started`.
    """

    def __init__(self, open_call: OpenStream, state: StreamState) -> None:
        self._open_call = open_call
        self._state = state
        self._call: Any = None
        self._opened = False
        self._cancelled = asyncio.Event()
        self._closed = False

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

    def __aiter__(self) -> Self:
        return self

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
        """Cancel the request unless it has ended. May be called twice, and while another task reads."""
        self._closed = True
        self.cancel()

    def cancel(self) -> None:
        """Cancel the request. Its reader gets CancelledError; after `aclose` it gets the end of iteration."""
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()

    async def _read(self) -> Event | None:
        if self._call is None:
            if self._cancelled.is_set():
                # Cancelled while there was no call: before the first one, or between two.
                raise CancelledError("the call was cancelled here", grpc.StatusCode.CANCELLED)
            again, self._opened = self._opened, True
            self._call = self._open_call(self._state.request(), self._state.time_left(), again=again)
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
        wait = self._state.failed(failure)
        if wait is None:
            raise failure from error
        self._call = None
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._cancelled.wait()


def task_is_cancelled() -> bool:
    """Return whether the running task itself is being cancelled.

    grpc raises asyncio.CancelledError also in a task that only waits for a call that was cancelled locally.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
