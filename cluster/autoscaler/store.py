"""The contract of the autoscaler's store. Two implementations: Redis for production, memory for tests and simulations.

One leader per pool writes decisions. Its lease carries a fence, a number that grows with every change of the leader. A
write under an older fence is refused, so a leader that hung cannot undo its successor's decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.values.steps import Relief


@dataclass(frozen=True, slots=True)
class Leadership:
    """Lease on leading a pool."""

    holder: str
    fence: int
    left_s: float
    """Time until the lease ends if it is not renewed."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Data that a leader takes over."""

    state: bytes | None
    """State as its predecessor committed it; None before the first decision."""
    target: int | None
    """Replicas as last decided, standbys included; None before the first decision."""
    failed_starts: int
    """Failed starts that replicas ever reported."""
    failure: str
    """Reason of the last failed start."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Decision with the values that follow from it."""

    state: bytes
    """The leader's new state."""
    target: int
    """Replicas that the platform is to have, standbys included."""
    relief: Relief
    relief_until_ms: int
    """Pool time when relief and orders to stand by end, unless a later decision renews them."""
    record: bytes
    """The decision with its reasons."""
    keep: int
    """Number of records that are kept."""
    standby: tuple[str, ...] = ()
    """Replicas that are to stand by."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One stored decision."""

    number: int
    """Grows by one with each decision of the pool."""
    record: bytes


class ControlStore(Protocol):
    """The autoscaler's store of one pool. Every method raises QueueUnavailableError if it does not answer in time."""

    async def lead(self, holder: str, lease_s: float) -> Leadership:
        """Take the lease if it is free, or renew it if `holder` has it; return the lease as it is now."""
        ...

    async def resign(self, holder: str) -> None:
        """Give the lease back; do nothing if another one has it."""
        ...

    async def load(self) -> Stored:
        """Read the last leader's data and the failures that replicas reported."""
        ...

    async def commit(self, holder: str, fence: int, decision: Commit) -> int:
        """Store a decision; return its number.

        Raises:
            LeadershipLostError: another one leads.
        """
        ...

    async def hold(self, fence: int, names: Sequence[str], seconds: float) -> bool:
        """Store orders to stand by in a cell of the pool other than the first, for so long. Return False where a leader
        with a later fence has given some.
        """
        ...

    async def decisions(self, limit: int, skip: int = 0) -> list[StoredRecord]:
        """Read the newest `limit` decisions after the newest `skip`, newest first."""
        ...

    async def set_point(self, point: bytes, *, if_missing: bool = False) -> int:
        """Store an operating point and return its version. Routers and replicas get it with their next heartbeats.
        With `if_missing` keep a point that is there and return 0.
        """
        ...

    async def point(self) -> bytes | None:
        """Read the stored operating point; None if none was ever set."""
        ...

    async def forecast(self) -> bytes | None:
        """Read the record of the pool's load, as `PoolForecast.to_bytes` wrote it; None if there is none."""
        ...

    async def store_forecast(self, holder: str, fence: int, record: bytes) -> None:
        """Keep the record of the pool's load. If another one leads nothing happens: it has a record of its own."""
        ...

    async def fit(self, group: str) -> str | None:
        """Read a group's step model, as `FittedStep.to_json` wrote it; None if there is none."""
        ...

    async def store_fit(self, group: str, fit: str) -> None:
        """Keep a group's step model for replicas to come."""
        ...

    async def note_failed_start(self, why: str) -> None:
        """Count a replica that did not come up."""
        ...

    async def forget(self) -> None:
        """Forget the leader, its state and its orders: the pool was removed. Decisions, the record of the load, step
        models and counters stay.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
