"""The store of a pool's request records in Redis."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cluster.clock import Clock
from cluster.records.contract import EndedRequest, RecordLimits
from cluster.records.redis.keys import record_keys
from cluster.records.redis.scripts import load_record_scripts
from cluster.redis.connections import RedisTarget
from cluster.redis.pipeline import open_pipeline
from cluster.redis.script import PLAIN, pack

DEFAULT_TIMEOUT_S = 2.0
_EMPTY_S = 60.0
"""Pause between two looks for records that are left where none are kept: routers with earlier settings may add some."""


class RedisRecordStore:
    """The store in Redis (6.2 or later). It belongs to the event loop that makes the first call. It has a connection of
    its own, so that long lists never delay the queue's calls.
    """

    def __init__(
        self,
        target: RedisTarget,
        pool: str,
        limits: RecordLimits | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Create a store that connects at the first call.

        Args:
            target: a URL as in the setting redis.url, a client whose connection pool is used to connect, or a server in
                this process.
            pool: name of the pool.
            limits: the same at every router.
            timeout_s: how long a call may wait for Redis, in seconds.
            clock: replaces Redis' own time; for tests.
        """
        self.limits = limits or RecordLimits()
        self._clock = clock
        self._empty_until = float("-inf")
        """Where no records are kept: monotonic time until which none are looked for that were kept before."""
        self._keys = record_keys(pool)
        self._pipeline = open_pipeline(target, timeout_s, self._keys[0])
        self._scripts = load_record_scripts()

    async def add(self, ended: Sequence[EndedRequest]) -> None:
        limits = self.limits
        if not ended or time.monotonic() < self._empty_until:
            return
        now = "" if self._clock is None else self._clock.wall_ms()
        kept = ended if limits.most else ()
        words = [word for one in kept for word in (one.tenant, one.request_id, int(one.missed), one.record)]
        missed_ms = limits.missed_ms if limits.most else 0
        left = await self._run("add", now, limits.most, missed_ms, limits.max_bytes, *words)
        if not limits.most and not left:
            self._empty_until = time.monotonic() + _EMPTY_S

    async def get(self, request_id: str) -> bytes:
        return bytes(await self._pipeline.call(PLAIN, pack("HGET", self._keys[0], request_id)) or b"")

    async def newest(self, tenant: str, limit: int, *, missed: bool) -> Sequence[bytes]:
        found = await self._run("newest", tenant, limit, int(missed))
        return [bytes(record) for record in found]

    async def close(self) -> None:
        await self._pipeline.close()

    async def _run(self, name: str, *arguments: str | bytes | float) -> Any:
        script = self._scripts[name]
        return await self._pipeline.call(script, pack("EVALSHA", script.sha, len(self._keys), *self._keys, *arguments))
