"""How the client for asyncio makes calls: channels, attempts, and the end of all of them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import grpc

from penstock.client.aio_stream import AsyncStream, task_is_cancelled
from penstock.client.calls import Result, UnaryCall
from penstock.client.connection import Connection, Stubs, Tries, next_target
from penstock.client.explain import Attempt
from penstock.client.retry import Attempts
from penstock.client.stream_state import StreamState, is_final
from penstock.client.watching import WatchState
from penstock.v1 import inference_pb2
from penstock.values.errors import BrokenCallError, CancelledError, from_rpc_error, resume_token_of
from penstock.values.jobs import JobUpdate


class AsyncCaller:
    """Channels to all routers of a client, and its running calls."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rotation = connection.rotation()
        self._channels: list[grpc.aio.Channel] = []
        self._stubs: list[Stubs] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        # Closing a channel does not wake the readers of its streams, so the client ends every call itself.
        self._running: set[Any] = set()
        self._streams: weakref.WeakSet[AsyncStream] = weakref.WeakSet()
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        self._closed.set()
        for running in (*self._running, *self._streams):
            running.cancel()
        channels, self._channels, self._stubs = self._channels, [], []
        for channel in channels:
            await channel.close(None)

    def _follow(self, request: inference_pb2.StreamGenerateRequest, attempts: Attempts) -> AsyncStream:
        stream = AsyncStream(self._open_stream, StreamState(request, attempts))
        self._streams.add(stream)
        return stream

    async def _run(self, call: UnaryCall[Result], timeout: float | None) -> Result:
        return await self._attempt(call, self._connection.attempts(timeout))

    async def _attempt(self, call: UnaryCall[Result], attempts: Attempts) -> Result:
        while True:
            stubs = self._next(attempts)
            running = call.method(stubs)(
                call.request, timeout=attempts.time_left(), metadata=self._connection.call_metadata()
            )
            self._running.add(running)
            try:
                return call.convert(await running)
            except grpc.RpcError as error:
                failure = self._connection.attempt(stubs.target, attempts.timeout).explained(from_rpc_error(error))
                if token := resume_token_of(error, failure):
                    # It may still be running: to ask again would run it twice.
                    raise BrokenCallError(token) from error
                wait = None if is_final(call.request, failure) else attempts.wait_after(failure)
                if wait is None:
                    raise failure from error
            except asyncio.CancelledError:
                if task_is_cancelled():
                    raise
                raise CancelledError("the call was cancelled here", grpc.StatusCode.CANCELLED) from None
            finally:
                self._running.discard(running)
                running.cancel()
            await self._pause(wait)

    async def _watch(self, state: WatchState) -> AsyncIterator[JobUpdate]:
        while not state.ended:
            stubs = self._next(state)
            call = stubs.jobs.WatchJob(state.request(), metadata=self._connection.call_metadata())
            self._running.add(call)
            begun = False
            try:
                async for message in call:
                    begun = True
                    yield state.accept(message)
                state.closed()
                return
            except grpc.RpcError as error:
                failure = self._connection.attempt(stubs.target, None).explained(from_rpc_error(error), begun=begun)
                wait = state.failed(failure)
                if wait is None:
                    raise failure from error
            except asyncio.CancelledError:
                if task_is_cancelled():
                    raise
                raise CancelledError("the watch was cancelled here", grpc.StatusCode.CANCELLED) from None
            finally:
                self._running.discard(call)
                call.cancel()
            await self._pause(wait)

    def _open_stream(
        self, request: inference_pb2.StreamGenerateRequest, attempts: Attempts, *, again: bool
    ) -> tuple[Any, Attempt]:
        if again:
            self._check_open()
        stubs = self._next(attempts)
        call = stubs.inference.StreamGenerate(
            request, timeout=attempts.time_left(), metadata=self._connection.stream_metadata(request)
        )
        return call, self._connection.attempt(stubs.target, attempts.timeout)

    async def _pause(self, seconds: float) -> None:
        """Wait for the next attempt; a close of the client ends the wait.

        Raises:
            CancelledError: the client was closed.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        self._check_open()

    def _check_open(self) -> None:
        """Raise CancelledError if the client was closed meanwhile."""
        if self._closed.is_set():
            raise CancelledError("the client was closed", grpc.StatusCode.CANCELLED)

    def _next(self, tries: Tries) -> Stubs:
        if self._closed.is_set():
            raise RuntimeError("the client is closed")
        loop = asyncio.get_running_loop()
        if self._channels and loop is not self._loop:
            # gRPC would raise errors of its own tasks and futures, or of a closed loop.
            raise RuntimeError(
                "the client belongs to the event loop of its first call: make one for each loop, "
                "also for each asyncio.run, or use Client, which is for all threads"
            )
        if not self._channels:
            # Not in __init__, because a channel belongs to the loop that runs when it is made.
            self._loop = loop
            targets = self._connection.targets
            self._channels = [self._channel(target) for target in targets]
            self._stubs = [Stubs(channel, target) for channel, target in zip(self._channels, targets, strict=True)]
        return self._stubs[next_target(self._rotation, tries)]

    def _channel(self, target: str) -> grpc.aio.Channel:
        if self._connection.tls is None:
            return grpc.aio.insecure_channel(target, options=self._connection.options)
        return grpc.aio.secure_channel(target, self._connection.tls.credentials(), options=self._connection.options)
