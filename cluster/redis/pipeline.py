"""Script calls over one connection; calls made in one turn of the event loop share one pipeline, and where a script can
make several of them they share one call.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

from redis import exceptions

from cluster.errors import QueueUnavailableError
from cluster.lifecycle import timeout_awake
from cluster.redis.connections import (
    CONNECTION_ERRORS,
    ConnectionSource,
    RedisTarget,
    is_demoted,
    step_error,
    translate,
    unavailable,
)
from cluster.redis.script import Script, ScriptStep, join

_LOG = logging.getLogger(__name__)
DEFAULT_TIMEOUT_S = 2.0
"""How long a store's call waits for Redis."""
_MAX_PENDING = 20_000
"""Most calls that wait."""
_MAX_BATCH = 512
"""Most calls per pipeline. It bounds how long Redis and the event loop work on one without a break."""
_MAX_STEPS = 32
"""Most steps of one script call. It bounds how long the call keeps others waiting, to a few milliseconds."""
_TRIES = 3
"""Tries of a call that did not run: the keys may have moved to another server, and that one may not have the script."""


class Pipeline(Protocol):
    """How a store calls scripts and single commands."""

    def call(self, script: Script, command: bytes, step: ScriptStep | None = None) -> Awaitable[Any]:
        """Send a packed EVALSHA of `script`, or a single command; return its reply. `step`: the same call as a step of
        a script that makes several, which is used where others wait with it.

        Raises:
            QueueUnavailableError: Redis does not answer, or the pipeline is closed.
        """
        ...

    async def close(self) -> None:
        """End calls in flight with QueueUnavailableError. May be called twice."""
        ...


class LocalServer(ABC):
    """A Redis that needs no connection."""

    @abstractmethod
    def open_pipeline(self) -> Pipeline:
        """Return a pipeline of a store's own."""


def open_pipeline(target: RedisTarget, timeout_s: float, key: str) -> Pipeline:
    """Return a store's pipeline, which connects at the first call. All keys of the store must share the slot of `key`.

    Raises:
        SettingsError: the URL has an option that connections do not accept.
    """
    if isinstance(target, LocalServer):
        return target.open_pipeline()
    return ScriptPipeline(ConnectionSource(target, timeout_s, key), timeout_s)


@dataclass(slots=True)
class _Call:
    script: Script
    command: bytes
    reply: asyncio.Future[Any]
    step: ScriptStep | None = None

    def joins(self, other: _Call) -> bool:
        """Return whether both may be steps of one script call."""
        return self.step is not None and other.step is not None and self.step.head == other.step.head


@dataclass(frozen=True, slots=True)
class _Sent:
    """A script call with the calls that it makes."""

    calls: tuple[_Call, ...]

    @property
    def script(self) -> Script:
        first = self.calls[0]
        return first.script if first.step is None or len(self.calls) == 1 else first.step.script

    def command(self) -> bytes:
        first = self.calls[0]
        if first.step is None or len(self.calls) == 1:
            return first.command
        return join(first.step.head, [call.step.packed for call in self.calls if call.step is not None])

    def settle(self, reply: Any) -> list[exceptions.ResponseError]:
        """Give each call its reply; return the errors of those that failed."""
        if len(self.calls) == 1:
            _answer(self.calls[0], reply)
            return []
        replies, flat = reply
        failed = {at - 1: step_error(text) for at, text in zip(flat[::2], flat[1::2], strict=True)}
        for at, (call, one) in enumerate(zip(self.calls, replies, strict=True)):
            if error := failed.get(at):
                _settle(call, translate(error))
            else:
                _answer(call, one)
        return list(failed.values())

    def fail(self, error: exceptions.ResponseError) -> None:
        """End all its calls with an error."""
        for call in self.calls:
            _settle(call, translate(error))


def _joined(batch: Sequence[_Call]) -> list[_Sent]:
    """Join neighbours into script calls; the order stays."""
    sent: list[list[_Call]] = []
    for call in batch:
        if sent and len(sent[-1]) < _MAX_STEPS and call.joins(sent[-1][0]):
            sent[-1].append(call)
        else:
            sent.append([call])
    return [_Sent(tuple(calls)) for calls in sent]


class ScriptPipeline:
    """Pipeline of script calls: owns a connection and the task that uses it.

    Callers only wait for futures, so a cancelled caller never leaves its reply behind for the next one. A pipeline that
    is not answered within `timeout_s` seconds (connecting included) fails, together with all calls that waited behind
    it, and the connection is replaced at the next call. Time in which this process stands still does not count.
    """

    def __init__(self, source: ConnectionSource, timeout_s: float) -> None:
        self._source = source
        self._timeout_s = timeout_s
        self._pending: deque[_Call] = deque()
        self._in_flight: list[_Call] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._away = False
        """Whether the last pipeline was not answered, and this was logged."""
        self._connection: Any = None
        self._task: asyncio.Task[None] | None = None

    def call(self, script: Script, command: bytes, step: ScriptStep | None = None) -> asyncio.Future[Any]:
        """Send a packed EVALSHA of `script`; the future returns its reply.

        Raises:
            QueueUnavailableError: too many calls wait already, or the pipeline is closed. The future raises it when
                Redis does not answer.
        """
        if self._closing:
            raise QueueUnavailableError("the queue client is closed")
        if len(self._pending) >= _MAX_PENDING:
            raise QueueUnavailableError(f"{_MAX_PENDING} queue calls wait already")
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run(), name="queue-pipeline")
        reply: asyncio.Future[Any] = loop.create_future()
        self._pending.append(_Call(script, command, reply, step))
        self._wake.set()
        return reply

    async def close(self) -> None:
        """End calls in flight with QueueUnavailableError and close the connection. May be called twice."""
        self._closing = True
        self._wake.set()
        self._fail_all(QueueUnavailableError("the queue client is closed"))
        await self._disconnect()
        if self._task is not None:
            # The closed connection ends a pipeline in flight; the task is never cancelled inside a read.
            await asyncio.wait([self._task])
        await self._source.close()

    async def _run(self) -> None:
        try:
            while not self._closing:
                await self._wake.wait()
                self._wake.clear()
                while self._pending and not self._closing:
                    await self._send_batch()
        finally:
            self._fail_all(QueueUnavailableError("the queue client is closed"))
            await self._disconnect()

    async def _send_batch(self) -> None:
        batch = [self._pending.popleft() for _ in range(min(_MAX_BATCH, len(self._pending)))]
        self._in_flight = batch
        try:
            async with timeout_awake(self._timeout_s):
                await self._exchange(batch)
            self._away = False
        except CONNECTION_ERRORS as error:
            # Warn once: every call fails the same way, and there may be thousands per second.
            level, self._away = logging.DEBUG if self._away else logging.WARNING, True
            _LOG.log(level, "queue.connection_lost", extra={"calls": len(batch), "error": str(error) or "timeout"})
            await self._disconnect()
            # Calls that waited behind would only wait as long again.
            self._fail_all(unavailable(error))
        except exceptions.RedisError as error:
            await self._disconnect()
            self._fail_all(unavailable(error))
        finally:
            self._in_flight = []

    async def _exchange(self, batch: Sequence[_Call]) -> None:
        for _ in range(_TRIES):
            batch = await self._pipeline(await self._connected(), batch)
            if not batch:
                return
        for call in batch:
            _settle(call, QueueUnavailableError("the queue forgets its scripts, or moves between servers"))

    async def _connected(self) -> Any:
        if self._connection is not None:
            return self._connection
        connection = self._connection = self._source.make()
        try:
            await connection.connect()
        finally:
            if self._connection is not connection:
                # It was closed before there was anything to close.
                await connection.disconnect(nowait=True)
        if self._closing:
            raise exceptions.ConnectionError("the queue client is closed")
        return connection

    async def _pipeline(self, connection: Any, batch: Sequence[_Call]) -> list[_Call]:
        """Send calls and settle them in order; return those that did not run and may run at the next try. Either Redis
        lacked the script, which it now has, or the keys moved, and the next connection leads to their server.
        """
        missing: set[Script] = set()
        again: list[_Call] = []
        demoted = False
        joined = _joined(batch)
        await connection.send_packed_command([b"".join([sent.command() for sent in joined])], check_health=False)
        for sent in joined:
            try:
                reply = await connection.read_response(disable_decoding=True, timeout=math.inf)
            except exceptions.NoScriptError:
                missing.add(sent.script)
                again += sent.calls
            except exceptions.MovedError as error:
                if self._source.moved(error):
                    demoted = True
                    again += sent.calls
                else:
                    sent.fail(error)
            except exceptions.ResponseError as error:
                # After a failover the next connection may lead to the new primary.
                demoted = demoted or is_demoted(error)
                sent.fail(error)
            else:
                demoted = any(map(is_demoted, sent.settle(reply))) or demoted
        if demoted:
            await self._disconnect()
        elif missing:
            # Redis restarted or was flushed, and lost the scripts.
            await self._load_scripts(connection, missing)
        return again

    async def _load_scripts(self, connection: Any, scripts: set[Script]) -> None:
        for script in scripts:
            await connection.send_command("SCRIPT", "LOAD", script.source, check_health=False)
            await connection.read_response(disable_decoding=True, timeout=math.inf)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    def _fail_all(self, error: QueueUnavailableError) -> None:
        calls = [*self._in_flight, *self._pending]
        self._pending.clear()
        for call in calls:
            _settle(call, error)


def _answer(call: _Call, reply: Any) -> None:
    if not call.reply.done():
        call.reply.set_result(reply)


def _settle(call: _Call, error: Exception) -> None:
    if not call.reply.done():
        # One exception object per waiter, because raising it adds a traceback.
        call.reply.set_exception(copy(error))
