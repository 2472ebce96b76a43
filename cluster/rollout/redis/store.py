"""The store of roll-outs in Redis."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from cluster.clock import Clock
from cluster.redis.connections import RedisTarget
from cluster.redis.keys import pool_key
from cluster.redis.pipeline import open_pipeline
from cluster.redis.script import Script, load_scripts, pack
from cluster.rollout.contract import StoredRollout

DEFAULT_TIMEOUT_S = 2.0


@cache
def load_rollout_scripts() -> Mapping[str, Script]:
    """Return all scripts by name."""
    return load_scripts("cluster.rollout.redis", ("read", "put"))


def rollout_key(pool: str) -> str:
    """Return the key of a pool's roll-out: a HASH, for ever, of one record with a bounded history."""
    return pool_key(pool, "rollout")


class RedisRolloutStore:
    """One pool's store in Redis (6.2 or later). It belongs to the event loop that makes the first call."""

    def __init__(
        self, target: RedisTarget, pool: str, timeout_s: float = DEFAULT_TIMEOUT_S, *, clock: Clock | None = None
    ) -> None:
        """Create a store that connects at the first call.

        Args:
            target: a URL as in the setting redis.url, or an `InProcessRedis`.
            pool: the pool's name.
            timeout_s: how long a call may wait for Redis, in seconds.
            clock: replaces Redis' own time; for tests.
        """
        self._clock = clock
        self._key = rollout_key(pool)
        self._scripts = load_rollout_scripts()
        self._pipeline = open_pipeline(target, timeout_s, self._key)

    async def read(self) -> StoredRollout:
        version, record, at_ms = await self._run("read", "" if self._clock is None else self._clock.wall_ms())
        return StoredRollout(int(version), bytes(record) or None, int(at_ms))

    async def put(self, expected: int, version: int, record: bytes) -> bool:
        return bool(await self._run("put", expected, version, record))

    async def close(self) -> None:
        await self._pipeline.close()

    async def _run(self, name: str, *arguments: str | bytes | float) -> Any:
        script = self._scripts[name]
        return await self._pipeline.call(script, pack("EVALSHA", script.sha, 1, self._key, *arguments))
