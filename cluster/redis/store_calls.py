"""Calls of one store: of its Lua scripts, and single commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.clock import Clock
from cluster.redis.connections import RedisTarget
from cluster.redis.pipeline import open_pipeline
from cluster.redis.script import PLAIN, load_scripts, pack


class StoreCalls:
    """Connection of one store to Redis (6.2 or later), made at the first call, with the store's scripts and its clock.
    It belongs to the event loop that makes that call.
    """

    def __init__(self, target: RedisTarget, package: str, key: str, timeout_s: float, clock: Clock | None) -> None:
        """Connect at the first call.

        Args:
            target: a URL as in the setting redis.url, a client whose connection pool is used to connect, or a server in
                this process.
            package: has the scripts, in its folder `lua`.
            key: any of the store's keys, which all share a hash slot.
            timeout_s: how long a call may wait for Redis, in seconds.
            clock: replaces Redis' own time; for tests.
        """
        self._scripts = load_scripts(package)
        self._pipeline = open_pipeline(target, timeout_s, key)
        self._clock = clock

    @property
    def now(self) -> str | int:
        """Time in ms for a script, empty for that of the server."""
        return "" if self._clock is None else self._clock.wall_ms()

    async def run(self, name: str, keys: Sequence[str], *arguments: str | bytes | float) -> Any:
        """Call a script.

        Raises:
            QueueUnavailableError: Redis does not answer, or the store is closed.
        """
        script = self._scripts[name]
        return await self._pipeline.call(script, pack("EVALSHA", script.sha, len(keys), *keys, *arguments))

    async def command(self, *words: str | bytes | float) -> Any:
        """Call a single command. Raises as `run` does."""
        return await self._pipeline.call(PLAIN, pack(*words))

    async def close(self) -> None:
        """End calls in flight with QueueUnavailableError."""
        await self._pipeline.close()
