"""The store of a pool's request records in Redis."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cluster.clock import Clock
from cluster.records.contract import EndedRequest, RecordLimits
from cluster.records.redis.keys import record_keys
from cluster.redis.connections import RedisTarget
from cluster.redis.pipeline import DEFAULT_TIMEOUT_S
from cluster.redis.store_calls import StoreCalls

_EMPTY_S = 60.0
"""Pause between two looks for records that are left where none are kept: routers with earlier settings may add some."""


class RedisRecordStore:
    """The store in Redis. It has a connection of its own, so that long lists never delay the queue's calls."""

    def __init__(
        self,
        target: RedisTarget,
        pool: str,
        limits: RecordLimits | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Create the store of the pool with this name. `limits` are the same at every router; the other arguments are
        those of `StoreCalls`.
        """
        self.limits = limits or RecordLimits()
        self._empty_until = float("-inf")
        """Where no records are kept: monotonic time until which none are looked for that were kept before."""
        self._keys = record_keys(pool)
        self._calls = StoreCalls(target, "cluster.records.redis", self._keys[0], timeout_s, clock)

    async def add(self, ended: Sequence[EndedRequest]) -> None:
        limits = self.limits
        if not ended or time.monotonic() < self._empty_until:
            return
        kept = ended if limits.most else ()
        words = [word for one in kept for word in (one.tenant, one.request_id, int(one.missed), one.record)]
        missed_ms = limits.missed_ms if limits.most else 0
        bounds = (limits.most, missed_ms, limits.max_bytes)
        left = await self._calls.run("add", self._keys, self._calls.now, *bounds, *words)
        if not limits.most and not left:
            self._empty_until = time.monotonic() + _EMPTY_S

    async def get(self, request_id: str) -> bytes:
        return bytes(await self._calls.command("HGET", self._keys[0], request_id) or b"")

    async def newest(self, tenant: str, limit: int, *, missed: bool) -> Sequence[bytes]:
        found = await self._calls.run("newest", self._keys, tenant, limit, int(missed))
        return [bytes(record) for record in found]

    async def close(self) -> None:
        await self._calls.close()
