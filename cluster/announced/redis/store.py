"""The store of announced load in Redis."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from cluster.announced.contract import MOST_OF_POOL, Put
from cluster.announced.load import AnnouncedLoad
from cluster.clock import Clock
from cluster.redis.connections import RedisTarget
from cluster.redis.keys import pool_key
from cluster.redis.pipeline import open_pipeline
from cluster.redis.script import PLAIN, Script, load_scripts, pack

_LOG = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 2.0


@cache
def load_announced_scripts() -> Mapping[str, Script]:
    """Return all scripts by name."""
    return load_scripts("cluster.announced.redis", ("put", "read"))


def announced_key(pool: str) -> str:
    """Return the key of a pool's announced load: a HASH, each field until its time is over."""
    return pool_key(pool, "announced")


class RedisAnnouncedStore:
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
        self._pool = pool
        self._clock = clock
        self._key = announced_key(pool)
        self._scripts = load_announced_scripts()
        self._pipeline = open_pipeline(target, timeout_s, self._key)

    async def put(self, load: AnnouncedLoad, most: int) -> Put:
        place = (load.tenant, load.id, load.ends_ms, load.to_bytes())
        return Put(int(await self._run("put", *place, most, MOST_OF_POOL)))

    async def read(self) -> Sequence[AnnouncedLoad]:
        found = [self._parsed(bytes(text)) for text in await self._run("read")]
        return sorted((load for load in found if load is not None), key=lambda load: (load.starts_ms, load.tenant))

    async def withdraw(self, tenant: str, load_id: str) -> bool:
        command = pack("HDEL", self._key, f"{tenant}/{load_id}")
        return bool(await self._pipeline.call(PLAIN, command))

    async def close(self) -> None:
        await self._pipeline.close()

    def _parsed(self, text: bytes) -> AnnouncedLoad | None:
        try:
            return AnnouncedLoad.from_bytes(text)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            _LOG.warning("announced.unread", extra={"pool": self._pool})
            return None

    async def _run(self, name: str, *arguments: str | bytes | float) -> Any:
        script = self._scripts[name]
        now = "" if self._clock is None else self._clock.wall_ms()
        return await self._pipeline.call(script, pack("EVALSHA", script.sha, 1, self._key, now, *arguments))
