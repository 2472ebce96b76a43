"""The server: its ports, a thread that waits for calls, and the handlers on the event loop."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import grpc

from router.grpc_server.call import Call
from router.grpc_server.completions import Completions
from router.grpc_server.connections import Connections
from router.grpc_server.core import PAST, core, credentials_of

_LOG = logging.getLogger(__name__)

_ARRIVAL = "arrival"
_SHUTDOWN = "shutdown"
_PER_TURN = 8
"""Calls that a turn of the event loop takes, for about a millisecond. Ten thousand that come at once would hold up
every stream, and a new request needs some ten turns until its first token."""
_SET_ASIDE = 4
"""Calls that a turn sets aside for each one that it might take; each takes about a fifth of the time. So the new calls
behind them in the core's line are found the earlier."""
RESUME_HEADER = "penstock-resume"
"""Metadata of a call that goes on with a stream. Clients of a dead router all come at once, and can wait."""


class _Details(NamedTuple):
    """Details of a call that generic handlers read; gRPC's own class is private."""

    method: str
    invocation_metadata: Any


class DirectServer:
    """Server on gRPC's core, without grpc.aio's part for the event loop.

    Calls arrive in a queue of their own. A thread waits there, and it alone wakes the loop. All other operations end in
    `Completions`, where the loop itself looks.
    """

    def __init__(self, options: Sequence[tuple[str, Any]]) -> None:
        """Create the server; `options` are channel arguments."""
        self._options = tuple(options)
        self._handlers: list[grpc.GenericRpcHandler[Any, Any]] = []
        self._server = core.Server(self._options, False)
        self._arrivals = core.CompletionQueue()
        self._server.register_completion_queue(self._arrivals)
        self._calls: set[Call] = set()
        self._fresh: collections.deque[Any] = collections.deque()
        self._aside: collections.deque[Any] = collections.deque()
        """Arrivals of calls that can wait."""
        self._lock = threading.Lock()
        """Held while a call is requested from the core, which must not happen once the shutdown has begun."""
        self._stopping = False
        self._woken = False
        self._loop: asyncio.AbstractEventLoop
        self._completions: Completions
        self._connections: Connections
        self._ports: list[int] = []
        self._shut: asyncio.Event
        self._thread: threading.Thread | None = None

    @property
    def open_calls(self) -> int:
        """Number of calls whose handlers run."""
        return len(self._calls)

    @property
    def open_connections(self) -> int:
        """Number of connections with open calls."""
        return len(self._connections)

    @property
    def operations_under_way(self) -> int:
        """Number of the core's operations that have not ended, or whose end the loop has not seen."""
        return self._completions.under_way

    # --- before the start ---------------------------------------------------------------------------------------------

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None:
        """Serve the methods of these handlers."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Do nothing: generated code gives the same handlers to `add_generic_rpc_handlers`."""

    def add_insecure_port(self, address: str) -> int:
        """Bind host:port and return the port; port 0 takes a free one.

        Raises:
            RuntimeError: it can't be bound.
        """
        return self._bound(address, self._server.add_http2_port(address.encode()))

    def add_secure_port(self, address: str, credentials: grpc.ServerCredentials) -> int:
        """Bind host:port with TLS and return the port.

        Raises:
            RuntimeError: it can't be bound.
        """
        return self._bound(address, self._server.add_http2_port(address.encode(), credentials_of(credentials)))

    def _bound(self, address: str, port: int) -> int:
        if not port:
            raise RuntimeError(f"{address} can't be bound")
        self._ports.append(port)
        return port

    async def start(self) -> None:
        """Begin to serve calls on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._completions = Completions(self._loop)
        self._connections = Connections(self._loop, self._ports)
        self._shut = asyncio.Event()
        self._server.start()
        self._ask()
        self._thread = threading.Thread(target=self._wait_for_calls, name="grpc-arrivals", daemon=True)
        self._thread.start()

    # --- arrivals -----------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        with self._lock:
            if not self._stopping:
                self._server.request_call(self._completions.queue, self._arrivals, _ARRIVAL)

    def _wait_for_calls(self) -> None:
        """Wait for calls; the body of the thread. While it waits, gRPC also reads the sockets of clients here."""
        while True:
            event = self._arrivals.poll()
            if event.completion_type == core.CompletionType.queue_shutdown:
                return
            self._fresh.append(event)
            if not self._woken:
                self._woken = True
                try:
                    self._loop.call_soon_threadsafe(self._accept)
                except RuntimeError:
                    # The loop was closed without `stop`.
                    return

    def _accept(self, more: bool = False) -> None:
        """Take calls that have arrived, as many as a turn of the loop takes. The others wait in the core.

        Calls that can wait are set aside; they have what the others leave of a turn, and one call at least.

        In a burst the loop polls for further calls itself: the thread would need Python's lock for each, which a busy
        loop seldom releases. For a single call the extra poll would only cost time, as much as reading all fields of
        the call. `more`: whether the last turn left some of a burst.
        """
        self._woken = False
        burst = more or len(self._fresh) > 1
        left = _PER_TURN * _SET_ASIDE
        while left > 0 and (event := self._next(burst)) is not None:
            left -= self._arrived(event)
        drained = left > 0
        while self._aside:
            self._take(self._aside.popleft())
            left -= _SET_ASIDE
            if left <= 0:
                break
        if (self._aside or not drained) and not self._woken:
            self._woken = True
            self._loop.call_soon(self._accept, True)

    def _next(self, burst: bool) -> Any:
        if self._fresh:
            return self._fresh.popleft()
        if not burst or self._stopping:
            return None
        event = self._arrivals.poll(PAST)
        return event if event.completion_type == core.CompletionType.operation_complete else None

    def _arrived(self, event: Any) -> int:
        """Take what has arrived. Return how much of a turn it took: `_SET_ASIDE` parts for a call, one for others."""
        if event.tag is _SHUTDOWN:
            self._shut.set()
            return 1
        if not event.success:
            # The server is shutting down.
            return 1
        self._ask()
        if any(name == RESUME_HEADER for name, _ in event.invocation_metadata):
            self._aside.append(event)
            return 1
        self._take(event)
        return _SET_ASIDE

    def _take(self, event: Any) -> None:
        try:
            self._begin(event)
        except Exception:  # noqa: BLE001 - others have come with it, and wait for this turn or the next
            _LOG.exception("call.not_begun")

    def _begin(self, event: Any) -> None:
        call = Call(event, self._completions, self._connections)
        call.listen()
        try:
            self._handle(call, self._find(call, event.invocation_metadata))
        except Exception as error:
            # A client without a deadline would wait for ever.
            call.send_status(grpc.StatusCode.UNKNOWN, f"unexpected {type(error).__name__}", (), None)
            raise

    def _handle(self, call: Call, handler: Any) -> None:
        if handler is None:
            call.send_status(grpc.StatusCode.UNIMPLEMENTED, f"no such method: {call.method}", (), None)
            return
        call.serialize = handler.response_serializer or _as_it_is
        call.deserialize = handler.request_deserializer or _as_it_is
        if handler.request_streaming:
            self._run(call, handler, None)
        else:
            self._receive(call, handler)

    def _receive(self, call: Call, handler: Any) -> None:
        arrived = hurried = False

        def received(event: Any) -> None:
            nonlocal arrived
            arrived = True
            if hurried:
                self._completions.relax()
            message = event.batch_operations[0].message() if event.success else None
            if call.gone:
                return
            if message is not None:
                self._run(call, handler, message)
            elif event.success:
                call.send_status(grpc.StatusCode.INVALID_ARGUMENT, "a message is required, got none", (), None)
            # Otherwise the message was too large, and the core has answered.

        call.receive(received)
        # A short request is in the same packet as its headers.
        self._completions.collect()
        if not arrived:
            hurried = True
            self._completions.hurry()

    def _find(self, call: Call, metadata: Any) -> Any:
        details: Any = _Details(call.method, metadata)
        for handler in self._handlers:
            if (found := handler.service(details)) is not None:
                return found
        return None

    # --- handlers -----------------------------------------------------------------------------------------------------

    def _run(self, call: Call, handler: Any, message: bytes | None) -> None:
        context = contextvars.copy_context()
        call.task = self._loop.create_task(self._answer(call, handler, message), context=context)
        self._calls.add(call)
        # `_answer` cannot do this: it never starts when the client leaves at once. The context is not copied again.
        call.task.add_done_callback(partial(self._ended, call), context=context)

    def _ended(self, call: Call, _task: object) -> None:
        self._calls.discard(call)
        # A cancelled task keeps its frames, and these keep the call.
        call.task = None

    async def _answer(self, call: Call, handler: Any, message: bytes | None) -> None:
        try:
            work = _behaviour(handler)(call.messages() if message is None else call.deserialize(message), call)
            # A stream lives long, and its prompt may be large: no frame keeps the message.
            del message
            if inspect.isasyncgen(work):
                async for reply in work:
                    await call.write(reply)
                last = None
            else:
                reply = await work
                last = None if handler.response_streaming else call.serialize(reply)
            await call.finish(grpc.StatusCode.OK, last=last)
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            if not call.gone:
                await call.finish(grpc.StatusCode.CANCELLED, "the server stops")
            raise
        except Exception as error:  # noqa: BLE001 - after any error the client gets an end
            _LOG.exception("call.failed", extra={"method": call.method})
            await call.finish(grpc.StatusCode.UNKNOWN, f"unexpected {type(error).__name__}")

    # --- stop ---------------------------------------------------------------------------------------------------------

    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, give open ones `grace` seconds, end the rest, and close the port."""
        if self._thread is None or self._stopping:
            return
        with self._lock:
            self._stopping = True
            self._server.shutdown(self._arrivals, _SHUTDOWN)
        try:
            async with asyncio.timeout(grace or 0.0):
                await self._shut.wait()
        except TimeoutError:
            self._aside.clear()
            self._server.cancel_all_calls()
            await self._shut.wait()
        await asyncio.gather(*(call.task for call in self._calls if call.task is not None), return_exceptions=True)
        self._arrivals.shutdown()
        await asyncio.to_thread(self._thread.join)
        while self._completions.under_way:
            self._completions.collect()
            await asyncio.sleep(0)
        self._completions.close()


def _behaviour(handler: Any) -> Callable[[Any, Any], Any]:
    kinds = {
        (False, False): handler.unary_unary,
        (False, True): handler.unary_stream,
        (True, False): handler.stream_unary,
        (True, True): handler.stream_stream,
    }
    found: Callable[[Any, Any], Any] = kinds[handler.request_streaming, handler.response_streaming]
    return found


def _as_it_is(message: Any) -> Any:
    return message
