"""The store of roll-outs in Redis."""

from __future__ import annotations

from cluster.clock import Clock
from cluster.redis.connections import RedisTarget
from cluster.redis.keys import pool_key
from cluster.redis.pipeline import DEFAULT_TIMEOUT_S
from cluster.redis.store_calls import StoreCalls
from cluster.rollout.contract import StoredRollout


def rollout_key(pool: str) -> str:
    """Return the key of a pool's roll-out: a HASH, for ever, of one record with a bounded history."""
    return pool_key(pool, "rollout")


class RedisRolloutStore:
    """One pool's store in Redis."""

    def __init__(
        self, target: RedisTarget, pool: str, timeout_s: float = DEFAULT_TIMEOUT_S, *, clock: Clock | None = None
    ) -> None:
        """Create the store of the pool with this name. The other arguments are those of `StoreCalls`."""
        self._keys = (rollout_key(pool),)
        self._calls = StoreCalls(target, "cluster.rollout.redis", self._keys[0], timeout_s, clock)

    async def read(self) -> StoredRollout:
        version, record, at_ms = await self._calls.run("read", self._keys, self._calls.now)
        return StoredRollout(int(version), bytes(record) or None, int(at_ms))

    async def put(self, expected: int, version: int, record: bytes) -> bool:
        return bool(await self._calls.run("put", self._keys, expected, version, record))

    async def close(self) -> None:
        await self._calls.close()
