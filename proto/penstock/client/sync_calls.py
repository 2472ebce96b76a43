"""How the client for threads makes calls: channels, attempts, and the end of all of them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import grpc

from penstock.client.calls import Result, UnaryCall
from penstock.client.connection import Connection, Stubs, Tries, next_target
from penstock.client.explain import Attempt
from penstock.client.retry import Attempts
from penstock.client.stream_state import StreamState, is_final
from penstock.client.sync_stream import Stream
from penstock.client.watching import WatchState
from penstock.v1 import inference_pb2
from penstock.values.errors import BrokenCallError, CancelledError, from_rpc_error, resume_token_of
from penstock.values.jobs import JobUpdate


class Caller:
    """Channels to all routers of a client, and its running calls."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rotation = connection.rotation()
        self._channels = [self._channel(target) for target in connection.targets]
        self._stubs = [Stubs(*each) for each in zip(self._channels, connection.targets, strict=True)]
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._lock = threading.RLock()
        """Lock held while streams are added or listed."""
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._closed.set()
        for channel in self._channels:
            channel.close()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            # The channels do not end a stream that waits for its next attempt.
            stream.cancel()

    def _follow(self, request: inference_pb2.StreamGenerateRequest, attempts: Attempts) -> Stream:
        stream = Stream(self._open_stream, StreamState(request, attempts))
        with self._lock:
            self._streams.add(stream)
        return stream

    def _run(self, call: UnaryCall[Result], timeout: float | None) -> Result:
        return self._attempt(call, self._connection.attempts(timeout))

    def _attempt(self, call: UnaryCall[Result], attempts: Attempts) -> Result:
        while True:
            stubs = self._next(attempts)
            try:
                with self._beginning():
                    answer = call.method(stubs)(
                        call.request, timeout=attempts.time_left(), metadata=self._connection.call_metadata()
                    )
                return call.convert(answer)
            except grpc.RpcError as error:
                failure = self._connection.attempt(stubs.target, attempts.timeout).explained(from_rpc_error(error))
                if token := resume_token_of(error, failure):
                    # It may still be running: to ask again would run it twice.
                    raise BrokenCallError(token) from error
                wait = None if is_final(call.request, failure) else attempts.wait_after(failure)
                if wait is None:
                    raise failure from error
            self._pause(wait)

    def _watch(self, state: WatchState) -> Iterator[JobUpdate]:
        while not state.ended:
            with self._beginning():
                stubs = self._next(state)
                call = stubs.jobs.WatchJob(state.request(), metadata=self._connection.call_metadata())
            begun = False
            try:
                for message in call:
                    begun = True
                    yield state.accept(message)
                state.closed()
                return
            except grpc.RpcError as error:
                failure = self._connection.attempt(stubs.target, None).explained(from_rpc_error(error), begun=begun)
                wait = state.failed(failure)
                if wait is None:
                    raise failure from error
            finally:
                call.cancel()
            self._pause(wait)

    def _open_stream(
        self, request: inference_pb2.StreamGenerateRequest, attempts: Attempts, *, again: bool
    ) -> tuple[Any, Attempt]:
        if again:
            self._check_open()
        with self._beginning():
            stubs = self._next(attempts)
            call = stubs.inference.StreamGenerate(
                request, timeout=attempts.time_left(), metadata=self._connection.stream_metadata(request)
            )
        return call, self._connection.attempt(stubs.target, attempts.timeout)

    def _pause(self, seconds: float) -> None:
        """Wait for the next attempt; a close of the client ends the wait.

        Raises:
            CancelledError: the client was closed.
        """
        self._closed.wait(seconds)
        self._check_open()

    @contextmanager
    def _beginning(self) -> Iterator[None]:
        """Raise CancelledError, and not gRPC's ValueError, where another thread closes the channel meanwhile."""
        try:
            yield
        except ValueError:
            self._check_open()
            raise

    def _check_open(self) -> None:
        """Raise CancelledError if the client was closed meanwhile."""
        if self._closed.is_set():
            raise CancelledError("the client was closed", grpc.StatusCode.CANCELLED)

    def _next(self, tries: Tries) -> Stubs:
        if self._closed.is_set():
            raise RuntimeError("the client is closed")
        return self._stubs[next_target(self._rotation, tries)]

    def _channel(self, target: str) -> grpc.Channel:
        if self._connection.tls is None:
            return grpc.insecure_channel(target, options=self._connection.options)
        return grpc.secure_channel(target, self._connection.tls.credentials(), options=self._connection.options)
