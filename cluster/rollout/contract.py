"""The contract of the store of roll-outs: one record per pool, which changes only as its last reader expects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """A pool's record as stored."""

    version: int
    """Grows by at least one with each change; 0 where there is no record."""
    record: bytes | None
    at_ms: int
    """Pool time of the reading."""


class RolloutStore(Protocol):
    """Store of one pool's roll-out. Every method raises QueueUnavailableError if it does not answer in time."""

    async def read(self) -> StoredRollout:
        """Read the record."""
        ...

    async def put(self, expected: int, version: int, record: bytes) -> bool:
        """Store a record; return False, and change nothing, where the stored version is not `expected`."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...
