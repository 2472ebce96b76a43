"""Names of all pools that ever took jobs. Jobs of a pool that is no longer served must still be found."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from cluster.redis.connections import RedisTarget
from cluster.redis.keys import PREFIX
from cluster.redis.pipeline import DEFAULT_TIMEOUT_S, open_pipeline
from cluster.redis.script import PLAIN, pack

JOB_POOLS_KEY = f"{PREFIX}:jobs:pools"
"""SET of names of pools. For ever; a few names. It belongs to no pool, so it may be on another server than theirs."""


class JobPools(Protocol):
    """Names of pools, shared by all routers. Every method may raise QueueUnavailableError."""

    async def add(self, names: Collection[str]) -> None:
        """Add pools; those that are there stay."""
        ...

    async def names(self) -> frozenset[str]:
        """Return every pool that was ever added."""
        ...

    async def close(self) -> None:
        """Close the connection; may be called twice."""
        ...


class RedisJobPools:
    """Names of pools in Redis. It connects at the first call."""

    def __init__(self, target: RedisTarget, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._pipeline = open_pipeline(target, timeout_s, JOB_POOLS_KEY)

    async def add(self, names: Collection[str]) -> None:
        if names:
            await self._pipeline.call(PLAIN, pack("SADD", JOB_POOLS_KEY, *sorted(names)))

    async def names(self) -> frozenset[str]:
        found = await self._pipeline.call(PLAIN, pack("SMEMBERS", JOB_POOLS_KEY))
        return frozenset(name.decode() for name in found)

    async def close(self) -> None:
        await self._pipeline.close()
