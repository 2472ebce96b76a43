"""A pipeline that closes while it connects leaves no connection open."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.errors import QueueUnavailableError
from cluster.redis.pipeline import ScriptPipeline
from cluster.redis.script import PLAIN, pack


class SlowConnection:
    """Connection whose connect takes until it is let go."""

    def __init__(self) -> None:
        self.asked, self.go, self.open = asyncio.Event(), asyncio.Event(), False

    async def connect(self) -> None:
        self.asked.set()
        await self.go.wait()
        self.open = True

    async def disconnect(self, nowait: bool = False) -> None:
        self.open = False


class Source:
    """Source of one connection."""

    def __init__(self, connection: SlowConnection) -> None:
        self._connection = connection

    def make(self) -> SlowConnection:
        return self._connection

    async def close(self) -> None:
        """Close nothing."""


async def test_a_connection_that_opens_after_the_close_is_closed() -> None:
    connection = SlowConnection()
    source: Any = Source(connection)
    pipeline = ScriptPipeline(source, 30.0)
    call = asyncio.ensure_future(pipeline.call(PLAIN, pack("PING")))
    await connection.asked.wait()
    closing = asyncio.ensure_future(pipeline.close())
    await asyncio.sleep(0)
    connection.go.set()
    await closing
    with pytest.raises(QueueUnavailableError):
        await call
    assert not connection.open
