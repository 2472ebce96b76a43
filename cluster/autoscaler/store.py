"""The contract of the autoscaler's store. Two implementations: Redis for production, memory for tests.

One leader per pool writes decisions. Its lease carries a fence that grows with every change of hands; a write under an
older one is refused, so a leader that stood still cannot undo what its successor decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.values.steps import Relief


@dataclass(frozen=True, slots=True)
class Leadership:
    """Is who leads a pool."""

    holder: str
    fence: int
    left_s: float
    """Until the lease ends, if it is not renewed."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Is what a leader takes over."""

    state: bytes | None
    """As its predecessor committed it; None where nobody ever decided."""
    target: int | None
    failed_starts: int
    """Ever reported by replicas."""
    failure: str
    """Why the last one failed."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Is a decision and what follows from it."""

    state: bytes
    target: int
    relief: Relief
    relief_until_ms: int
    """Pool time until which routers and replicas keep to it when nothing more is said."""
    record: bytes
    """The decision, explained."""
    keep: int
    """Records that are kept."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """Is one stored decision."""

    number: int
    """Grows by one with each decision of the pool."""
    record: bytes


class ControlStore(Protocol):
    """Is one pool's. Every method raises QueueUnavailableError when the store does not answer in time."""

    async def lead(self, holder: str, lease_s: float) -> Leadership:
        """Take the lease where it is free, or renew the own one; returns who has it now."""
        ...

    async def resign(self, holder: str) -> None:
        """Give the lease back; nothing happens where it is another's."""
        ...

    async def load(self) -> Stored:
        """Read what the last leader left, and what replicas reported."""
        ...

    async def commit(self, holder: str, fence: int, decision: Commit) -> int:
        """Store a decision; returns its number.

        Raises:
            LeadershipLostError: another one leads.
        """
        ...

    async def decisions(self, limit: int) -> list[StoredRecord]:
        """Read the newest decisions, newest first."""
        ...

    async def set_point(self, point: bytes, *, if_missing: bool = False) -> int:
        """Store an operating point, which the next heartbeats of routers and replicas bring them; returns its version.
        With `if_missing` one that is there stays, and 0 is returned.
        """
        ...

    async def point(self) -> bytes | None:
        """Read the stored operating point; None where nobody ever set one."""
        ...

    async def fit(self, group: str) -> str | None:
        """Read a group's step model, as `FittedStep.to_json` wrote it."""
        ...

    async def store_fit(self, group: str, fit: str) -> None:
        """Keep a group's step model for replicas to come."""
        ...

    async def note_failed_start(self, why: str) -> None:
        """Count a replica that did not come up."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
