"""One call: the methods for its handler, and its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NoReturn

import grpc

from router.call_context import ClientGoneError, Metadata, text_event
from router.grpc_server.completions import Completions
from router.grpc_server.connections import Connections, host_of
from router.grpc_server.core import NO_FLAGS, core

_FOREVER_S = 10 * 365 * 86_400.0
"""Ten years. A call without a deadline gets one from gRPC that is further away."""


class CallEndedError(ClientGoneError, grpc.aio.InternalError):
    """Error of a write to a call that has ended. It is both what services and what handlers of grpc.aio catch."""


class Call:
    """Call in progress, with the methods of `grpc.aio.ServicerContext` that this router's handlers use."""

    __slots__ = (
        "_call",
        "_completions",
        "_connection",
        "_connections",
        "_deadline",
        "_finished",
        "_greeted",
        "_metadata",
        "_peer",
        "_settled",
        "_writing",
        "deserialize",
        "gone",
        "method",
        "serialize",
        "task",
    )

    def __init__(self, event: Any, completions: Completions, connections: Connections) -> None:
        """Take a call; `event` is its arrival."""
        self.method: str = event.call_details.method.decode("latin-1")
        self.serialize: Any = None
        self.deserialize: Any = None
        self.task: asyncio.Task[None] | None = None
        """Task that runs the handler."""
        self.gone = False
        """Whether the client has left, or has the end of the call."""
        self._call = event.call
        self._metadata = event.invocation_metadata
        self._deadline: float = event.call_details.deadline
        self._completions = completions
        self._connections = connections
        self._peer: str = event.call.peer().decode()
        self._connection = connections.joined(self._peer)
        self._greeted = False
        """Whether initial metadata has been sent."""
        self._writing = False
        """Whether a message is being sent; there is at most one."""
        self._finished = False
        """Whether the status has been sent."""
        self._settled: asyncio.Future[None] | None = None
        """Future that resolves when no message is being sent; None while no caller waits for it."""

    @property
    def direct(self) -> Call:
        """The call itself."""
        return self

    def listen(self) -> None:
        """Watch for the client to leave; then cancel the handler's task."""
        self._completions.start(self._call, (core.ReceiveCloseOnServerOperation(NO_FLAGS),), self._closed)

    def _closed(self, event: Any) -> None:
        cancelled = event.batch_operations[0].cancelled() or not self._finished
        self.gone = True
        self._connections.left(self._peer)
        if cancelled and self.task is not None:
            self.task.cancel()

    # --- for handlers -------------------------------------------------------------------------------------------------

    def time_remaining(self) -> float | None:
        """Return the seconds until the client's deadline; None where it has none."""
        left = self._deadline - time.time()
        return max(0.0, left) if left < _FOREVER_S else None

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return the metadata of the client."""
        return tuple(self._metadata)

    def peer_address(self) -> str:
        """Return the client's address without a port; empty for a Unix socket."""
        return host_of(self._peer)

    def auth_context(self) -> dict[str, Iterable[bytes]]:
        """Return the properties of the client that TLS has verified."""
        found = core.auth_context(self._call)
        return {key.decode() if isinstance(key, bytes) else key: value for key, value in found.items()}

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Send metadata before the first message.

        Raises:
            grpc.aio.UsageError: metadata or a message was sent before.
        """
        if self._greeted:
            raise grpc.aio.UsageError("the initial metadata has been sent")
        self._greeted = True
        operation = core.SendInitialMetadataOperation(tuple(metadata), NO_FLAGS)
        self._completions.start(self._call, (operation,), _nothing)

    def opened(self, request_id: str) -> None:
        """Do nothing: events name their request themselves."""

    async def write(self, message: Any) -> None:
        """Send a message, after the one before has left. So a client that reads slowly holds up its handler.

        Raises:
            CallEndedError: the client is gone, or the call has ended.
        """
        if self._writing:
            await self._wait_written()
        if self.gone or self._finished:
            raise CallEndedError("the call has ended")
        try:
            self.write_now(message)
        except ValueError as error:
            self.gone = True
            raise CallEndedError(str(error)) from error

    def can_write(self) -> bool:
        """Return whether a message would leave now: none is being sent, and no caller waits to write."""
        while self._writing:
            # Operations end in the order in which they began, so this collects few of other calls.
            if not self._completions.collect_one():
                return False
        return self._settled is None and not self.gone and not self._finished

    def write_now(self, message: Any) -> None:
        """Send a message while `can_write`.

        Raises:
            ValueError: the core takes no more messages for this call.
        """
        sent = core.SendMessageOperation(self.serialize(message), NO_FLAGS)
        self._connection.sending()
        self._completions.start(self._call, (sent,) if self._greeted else (*self._greeting(), sent), self._wrote)
        self._writing = True

    def write_text(self, index: int, offset: int, token_ids: Sequence[int], text: str) -> None:
        """Send output that is only text, as `write_now` does.

        Raises:
            ValueError: the core takes no more messages for this call.
        """
        self.write_now(text_event(index, offset, token_ids, text))

    async def read(self) -> bytes | None:
        """Receive a message. None comes after the last one, and also when the call broke off; then `gone` is set next.

        Raises:
            asyncio.CancelledError: the message is not valid, or the call broke off.
        """
        message: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def received(event: Any) -> None:
            if message.done():
                return
            if event.success:
                message.set_result(event.batch_operations[0].message())
            else:
                message.cancel()

        self.receive(received)
        self._completions.collect()
        if not message.done():
            await self._completions.wait(message)  # type: ignore[arg-type]
        return message.result()

    def receive(self, received: Any) -> None:
        """Start to receive a message; `received` gets the event."""
        self._completions.start(self._call, (core.ReceiveMessageOperation(NO_FLAGS),), received)

    async def messages(self) -> AsyncIterator[Any]:
        """Yield the messages of the client.

        Raises:
            asyncio.CancelledError: the call broke off, so the messages before it are not all.
        """
        while (message := await self.read()) is not None:
            yield self.deserialize(message)
        self._completions.collect()
        if self.gone:
            raise asyncio.CancelledError

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the call with an error.

        Raises:
            grpc.aio.AbortError: always.
        """
        await self.finish(code, details, trailing_metadata)
        raise grpc.aio.AbortError("the call was ended on purpose")

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """End the call with an error.

        Raises:
            grpc.aio.AbortError: always.
        """
        await self.abort(status.code, status.details or "", status.trailing_metadata or ())

    # --- ends ---------------------------------------------------------------------------------------------------------

    async def finish(
        self, code: grpc.StatusCode, details: str = "", trailing: Metadata = (), last: bytes | None = None
    ) -> None:
        """Send the last message, where there is one, and the status. Do nothing when the call has ended."""
        if self._writing:
            await self._wait_written()
        if not self.gone and not self._finished:
            self.send_status(code, details, trailing, last)

    def send_status(self, code: grpc.StatusCode, details: str, trailing: Metadata, last: bytes | None) -> None:
        """Send the status; call it only while no message is being sent."""
        self._finished = True
        operations = (
            *(() if self._greeted else self._greeting()),
            *(() if last is None else (core.SendMessageOperation(last, NO_FLAGS),)),
            core.SendStatusFromServerOperation(tuple(trailing), code.value[0], details.encode(), NO_FLAGS),
        )
        self._completions.start(self._call, operations, _nothing)

    def _greeting(self) -> tuple[Any, ...]:
        self._greeted = True
        return (core.SendInitialMetadataOperation(None, NO_FLAGS),)

    def _wrote(self, event: Any) -> None:
        self._writing = False
        if not event.success:
            self.gone = True
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    async def _wait_written(self) -> None:
        self._completions.collect()
        while self._writing:
            self._settled = asyncio.get_running_loop().create_future()
            try:
                await self._completions.wait(self._settled)
            finally:
                self._settled = None


def _nothing(event: Any) -> None:
    """Ignore the end of an operation that changes nothing."""
