"""The autoscaler's store in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.autoscaler.redis.keys import control_keys, fits_key
from cluster.autoscaler.store import Commit, Leadership, Stored, StoredRecord
from cluster.clock import Clock
from cluster.errors import LeadershipLostError
from cluster.redis.connections import RedisTarget
from cluster.redis.pipeline import DEFAULT_TIMEOUT_S
from cluster.redis.store_calls import StoreCalls


class RedisControlStore:
    """One pool's store in Redis."""

    def __init__(
        self, target: RedisTarget, pool: str, timeout_s: float = DEFAULT_TIMEOUT_S, *, clock: Clock | None = None
    ) -> None:
        """Create the store of the pool with this name. The other arguments are those of `StoreCalls`."""
        self.pool = pool
        self._keys = control_keys(pool)
        self._calls = StoreCalls(target, "cluster.autoscaler.redis", self._keys[0], timeout_s, clock)

    async def lead(self, holder: str, lease_s: float) -> Leadership:
        fence, found, left_ms = await self._run("lead", holder, round(lease_s * 1000))
        return Leadership(found.decode(), fence, left_ms / 1000)

    async def resign(self, holder: str) -> None:
        await self._run("resign", holder)

    async def load(self) -> Stored:
        fields = ("state", "target", "failed_starts", "failure")
        state, target, failed, failure = await self._calls.command("HMGET", self._keys[0], *fields)
        return Stored(state, None if target is None else int(target), int(failed or 0), (failure or b"").decode())

    async def commit(self, holder: str, fence: int, decision: Commit) -> int:
        number: int = await self._run(
            "commit",
            *(holder, fence, decision.state, decision.target, decision.relief.value, decision.relief_until_ms),
            *(decision.record, decision.keep, _lines(decision.standby)),
        )
        if not number:
            raise LeadershipLostError(self.pool, fence)
        return number

    async def hold(self, fence: int, names: Sequence[str], seconds: float) -> bool:
        return bool(await self._run("hold", fence, _lines(names), round(seconds * 1000)))

    async def decisions(self, limit: int, skip: int = 0) -> list[StoredRecord]:
        # A limit of 0 could end the range at -1, which is the last record for Redis.
        found = await self._calls.command("LRANGE", self._keys[1], skip, skip + limit - 1) if limit else []
        pairs = (line.split(b" ", 1) for line in found)
        return [StoredRecord(int(number), record) for number, record in pairs]

    async def set_point(self, point: bytes, *, if_missing: bool = False) -> int:
        version: int = await self._run("set_point", point, int(if_missing))
        return version

    async def point(self) -> bytes | None:
        found: bytes | None = await self._calls.command("HGET", self._keys[0], "point")
        return found

    async def forecast(self) -> bytes | None:
        found: bytes | None = await self._calls.command("GET", self._keys[2])
        return found

    async def store_forecast(self, holder: str, fence: int, record: bytes) -> None:
        await self._run("store_forecast", holder, fence, record)

    async def fit(self, group: str) -> str | None:
        found = await self._calls.command("HGET", fits_key(self.pool), group)
        return None if found is None else found.decode()

    async def store_fit(self, group: str, fit: str) -> None:
        await self._calls.command("HSET", fits_key(self.pool), group, fit)

    async def note_failed_start(self, why: str) -> None:
        await self._run("note_failure", why)

    async def forget(self) -> None:
        await self._run("forget")

    async def close(self) -> None:
        await self._calls.close()

    async def _run(self, name: str, *arguments: str | bytes | float) -> Any:
        return await self._calls.run(name, self._keys, self._calls.now, *arguments)


def _lines(names: Sequence[str]) -> str:
    """Return names as heartbeats look them up: each between line ends."""
    return "".join(f"\n{name}\n" for name in names)
