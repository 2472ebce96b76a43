"""The contract of the store of request records: what a pool remembers of requests that have ended.

A record is opaque to the store, and has no prompt and no output. The store keeps the newest records of a pool, and
those that missed their SLO for a time of their own. Where it has more bytes than it may have, the oldest go first.
Records are for people who look for a cause. Losing them loses nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """Bounds of a pool's records, the same on every router."""

    most: int = 10_000
    """Newest requests that are kept; 0 keeps no records at all."""
    missed_ms: int = 86_400_000
    """How long requests that missed their SLO are kept."""
    max_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """One call of a request, to be stored."""

    request_id: str
    tenant: str
    missed: bool
    """Whether it missed its SLO, or failed."""
    record: bytes
    """Record of the call. Records of further calls of the same request are appended to it."""


class RecordStore(Protocol):
    """Store of one pool's records. Every method may raise QueueUnavailableError."""

    async def add(self, ended: Sequence[EndedRequest]) -> None:
        """Store some calls, and forget what is beyond the bounds."""
        ...

    async def get(self, request_id: str) -> bytes:
        """Return the records of a request's calls, one after another; empty where none is kept."""
        ...

    async def newest(self, tenant: str, limit: int, *, missed: bool) -> Sequence[bytes]:
        """Return the records of some requests, newest first.

        Args:
            tenant: whose requests; "" for all tenants.
            limit: most requests to return.
            missed: whether to return only those that missed their SLO, or failed.
        """
        ...

    async def close(self) -> None:
        """Close the connection; may be called twice."""
        ...
