"""Reading and changing of a pool's roll-out, which others change too."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cluster.errors import QueueUnavailableError
from cluster.rollout.contract import RolloutStore, StoredRollout
from cluster.rollout.record import Rollout

_LOG = logging.getLogger(__name__)
_TRIES = 100
"""Tries of a change. Each that fails means that another process changed the record, so they end soon."""

Change = Callable[[Rollout | None, int], Rollout | None]
"""Function from the record, and pool time in milliseconds, to the new record. The same record changes nothing."""


class RolloutBook:
    """One pool's record. What it last read goes back to a store that lost its data."""

    def __init__(self, pool: str, store: RolloutStore) -> None:
        self._pool = pool
        self._store = store
        self._known = StoredRollout(0, None, 0)

    async def read(self) -> tuple[Rollout | None, int]:
        """Return the record, and pool time in milliseconds.

        Raises:
            QueueUnavailableError: the store does not answer.
        """
        found = await self._read()
        return parse(found.record), found.at_ms

    async def change(self, change: Change) -> Rollout | None:
        """Change the record. `change` is called again where another process was faster. Return the new record.

        Raises:
            QueueUnavailableError: the store does not answer.
            Exception: what `change` raises.
        """
        for _ in range(_TRIES):
            found = await self._read()
            before = parse(found.record)
            after = change(before, found.at_ms)
            if after is None or after is before or after == before:
                return after
            if await self._put(found.version, found.version + 1, after.to_bytes(), found.at_ms):
                return after
        raise QueueUnavailableError(f"the roll-out of pool {self._pool} changes all the time")

    async def close(self) -> None:
        """Close the connection."""
        await self._store.close()

    async def _read(self) -> StoredRollout:
        found = await self._store.read()
        if found.version < self._known.version and self._known.record is not None:
            _LOG.warning("rollout.restored", extra={"pool": self._pool, "version": self._known.version})
            await self._put(found.version, self._known.version + 1, self._known.record, found.at_ms)
            found = await self._store.read()
        self._known = found
        return found

    async def _put(self, expected: int, version: int, record: bytes, at_ms: int) -> bool:
        stored = await self._store.put(expected, version, record)
        if stored:
            self._known = StoredRollout(version, record, at_ms)
        return stored


def parse(record: bytes | None) -> Rollout | None:
    """Read a record; None where there is none, or one of a newer release."""
    if record is None:
        return None
    try:
        return Rollout.from_bytes(record)
    except (ValueError, KeyError, TypeError):
        _LOG.warning("rollout.unread")
        return None
