"""Subscription to a router's bell in Redis."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import Any

from redis import exceptions

from cluster.errors import QueueUnavailableError
from cluster.lifecycle import slept_awake, timeout_awake
from cluster.queue.checks import check_id
from cluster.queue.redis.keys import bell_channel
from cluster.redis.connections import CONNECTION_ERRORS, ConnectionSource, RedisTarget

_LOG = logging.getLogger(__name__)
_PING_S = 5.0
_SILENT_S = 15.0
"""Silence, over three pings, after which a connection is replaced."""
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 2.0


class RedisBell:
    """Subscription on a connection of its own, renewed when it breaks. Rings during a break are lost; the router's next
    heartbeat finds their mail. Waiting rings of one pool are merged.
    """

    def __init__(self, target: RedisTarget, router_id: str, timeout_s: float = 2.0) -> None:
        check_id("router_id", router_id)
        self._channel = bell_channel(router_id)
        # Every server of a Redis Cluster gets what is published at another one, so one that is away silences no bell.
        self._source = ConnectionSource(target, timeout_s, self._channel, anywhere=True)
        self._timeout_s = timeout_s
        self._rung: dict[str, None] = {}
        self._changed = asyncio.Event()
        self._subscribed = asyncio.Event()
        self._ended = asyncio.Event()
        self._connection: Any | None = None
        self._heard = 0.0
        self._delay_s = _FIRST_DELAY_S
        """Pause before the next connect."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Subscribe and return once Redis has confirmed it. `wait` does it too if needed."""
        if self._ended.is_set():
            raise QueueUnavailableError("the bell is closed")
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="queue-bell")
        await self._subscribed.wait()
        if self._ended.is_set():
            raise QueueUnavailableError("the bell is closed")

    async def wait(self) -> str:
        while not self._rung:
            if self._task is None:
                await self.start()
            self._changed.clear()
            if self._ended.is_set():
                raise QueueUnavailableError("the bell is closed")
            if not self._rung:
                await self._changed.wait()
        pool = next(iter(self._rung))
        del self._rung[pool]
        return pool

    async def close(self) -> None:
        """Stop listening. The connection is closed instead of cancelling the read, because redis-py may swallow a
        cancellation.
        """
        self._ended.set()
        self._changed.set()
        self._subscribed.set()
        await self._disconnect()
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._source.close()

    async def _run(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    await self._listen()
                except (*CONNECTION_ERRORS, exceptions.RedisError) as error:
                    if self._ended.is_set():
                        return
                    _LOG.warning("queue.bell_lost", extra={"error": str(error), "retry_s": self._delay_s})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._delay_s):
                        await self._ended.wait()
                self._delay_s = min(2 * self._delay_s, _LONGEST_DELAY_S)
        finally:
            await self._disconnect()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        connection = self._connection = self._source.make()
        watch: asyncio.Task[None] | None = None
        try:
            async with timeout_awake(self._timeout_s):
                await connection.connect()
                if self._ended.is_set():
                    return
                await connection.send_command("SUBSCRIBE", self._channel, check_health=False)
            self._heard = loop.time()
            watch = loop.create_task(self._watch(connection), name="queue-bell-watch")
            while True:
                message = await connection.read_response(disable_decoding=True, timeout=math.inf, push_request=True)
                self._heard = loop.time()
                self._take(message)
        finally:
            if watch is not None:
                watch.cancel()
                await asyncio.wait([watch])
            await connection.disconnect(nowait=True)

    def _take(self, message: object) -> None:
        if not isinstance(message, list) or len(message) != 3:
            return
        kind, _, data = message
        if kind == b"subscribe":
            self._subscribed.set()
            self._delay_s = _FIRST_DELAY_S
        elif kind == b"message":
            self._rung[data.decode()] = None
            self._changed.set()

    async def _watch(self, connection: Any) -> None:
        """Close a connection that went silent; nothing else would notice."""
        loop = asyncio.get_running_loop()
        while True:
            if not await slept_awake(_PING_S):
                # What came meanwhile has not been read.
                self._heard = loop.time()
            elif loop.time() - self._heard > _SILENT_S:
                await connection.disconnect(nowait=True)
                return
            await connection.send_command("PING", check_health=False)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)
