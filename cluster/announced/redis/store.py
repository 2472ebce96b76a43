"""The store of announced load in Redis."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cluster.announced.contract import MOST_OF_POOL, Put
from cluster.announced.load import AnnouncedLoad
from cluster.clock import Clock
from cluster.redis.connections import RedisTarget
from cluster.redis.keys import pool_key
from cluster.redis.pipeline import DEFAULT_TIMEOUT_S
from cluster.redis.store_calls import StoreCalls

_LOG = logging.getLogger(__name__)


def announced_key(pool: str) -> str:
    """Return the key of a pool's announced load: a HASH, each field until its time is over."""
    return pool_key(pool, "announced")


class RedisAnnouncedStore:
    """One pool's store in Redis."""

    def __init__(
        self, target: RedisTarget, pool: str, timeout_s: float = DEFAULT_TIMEOUT_S, *, clock: Clock | None = None
    ) -> None:
        """Create the store of the pool with this name. The other arguments are those of `StoreCalls`."""
        self._pool = pool
        self._keys = (announced_key(pool),)
        self._calls = StoreCalls(target, "cluster.announced.redis", self._keys[0], timeout_s, clock)

    async def put(self, load: AnnouncedLoad, most: int) -> Put:
        place = (load.tenant, load.id, load.ends_ms, load.to_bytes())
        return Put(int(await self._calls.run("put", self._keys, self._calls.now, *place, most, MOST_OF_POOL)))

    async def read(self) -> Sequence[AnnouncedLoad]:
        found = [self._parsed(bytes(text)) for text in await self._calls.run("read", self._keys, self._calls.now)]
        return sorted((load for load in found if load is not None), key=lambda load: (load.starts_ms, load.tenant))

    async def withdraw(self, tenant: str, load_id: str) -> bool:
        return bool(await self._calls.command("HDEL", self._keys[0], f"{tenant}/{load_id}"))

    async def close(self) -> None:
        await self._calls.close()

    def _parsed(self, text: bytes) -> AnnouncedLoad | None:
        try:
            return AnnouncedLoad.from_bytes(text)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            _LOG.warning("announced.unread", extra={"pool": self._pool})
            return None
