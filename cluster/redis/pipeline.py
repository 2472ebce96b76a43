"""Script calls over one connection; calls made in one turn of the event loop share one pipeline."""

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
from cluster.redis.connections import (
    CONNECTION_ERRORS,
    ConnectionSource,
    RedisTarget,
    is_demoted,
    translate,
    unavailable,
)
from cluster.redis.script import Script

_LOG = logging.getLogger(__name__)
_MAX_BATCH = 512
"""Most calls per pipeline. It bounds how long Redis and the event loop work on one without a break."""
_TRIES = 3
"""Tries of a call that did not run: the keys may have moved to another server, and that one may not have the script."""


class Pipeline(Protocol):
    """How a store calls scripts and single commands."""

    def call(self, script: Script, command: bytes) -> Awaitable[Any]:
        """Send a packed EVALSHA of `script`, or a single command; return its reply.

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


class ScriptPipeline:
    """Pipeline of script calls: owns a connection and the task that uses it.

    Callers only wait for futures, so a cancelled caller never leaves its reply behind for the next one. A pipeline that
    is not answered within `timeout_s` seconds (connecting included) fails, together with all calls that waited behind
    it, and the connection is replaced at the next call.
    """

    def __init__(self, source: ConnectionSource, timeout_s: float, max_pending: int = 20_000) -> None:
        self._source = source
        self._timeout_s = timeout_s
        self._max_pending = max_pending
        self._pending: deque[_Call] = deque()
        self._in_flight: list[_Call] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._away = False
        """Whether the last pipeline was not answered, and this was logged."""
        self._connection: Any = None
        self._task: asyncio.Task[None] | None = None

    def call(self, script: Script, command: bytes) -> asyncio.Future[Any]:
        """Send a packed EVALSHA of `script`; the future returns its reply.

        Raises:
            QueueUnavailableError: too many calls wait already, or the pipeline is closed. The future raises it when
                Redis does not answer.
        """
        if self._closing:
            raise QueueUnavailableError("the queue client is closed")
        if len(self._pending) >= self._max_pending:
            raise QueueUnavailableError(f"{self._max_pending} queue calls wait already")
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run(), name="queue-pipeline")
        reply: asyncio.Future[Any] = loop.create_future()
        self._pending.append(_Call(script, command, reply))
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
            async with asyncio.timeout(self._timeout_s):
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
        missing: list[_Call] = []
        again: list[_Call] = []
        demoted = False
        await connection.send_packed_command([b"".join([call.command for call in batch])], check_health=False)
        for call in batch:
            try:
                reply = await connection.read_response(disable_decoding=True, timeout=math.inf)
            except exceptions.NoScriptError:
                missing.append(call)
                again.append(call)
            except exceptions.MovedError as error:
                if self._source.moved(error):
                    demoted = True
                    again.append(call)
                else:
                    _settle(call, translate(error))
            except exceptions.ResponseError as error:
                # After a failover the next connection may lead to the new primary.
                demoted = demoted or is_demoted(error)
                _settle(call, translate(error))
            else:
                if not call.reply.done():
                    call.reply.set_result(reply)
        if demoted:
            await self._disconnect()
        elif missing:
            # Redis restarted or was flushed, and lost the scripts.
            await self._load_scripts(connection, {call.script for call in missing})
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


def _settle(call: _Call, error: Exception) -> None:
    if not call.reply.done():
        # One exception object per waiter, because raising it adds a traceback.
        call.reply.set_exception(copy(error))
