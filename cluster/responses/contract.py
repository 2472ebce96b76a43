"""The contract of the store of responses: what a response asked for, how far it got, and what came of it.

A response runs until `finish` stores its result. Whoever runs it has a random token, and every change under another
token is refused. A response with a lease has an owner that renews the lease. When the owner is silent, another router
may `claim` the response, and has a new token then. A response without a lease belongs to the connection that created
it, until a router claims it.

Its owner writes the output into a journal, which other routers read. An owner that starts anew, after a claim for
example, begins another journal under the next number.

An ended response is deleted `ttl_ms` after its end. Where a tenant would have more than its bounds allow, its oldest
ended ones are deleted first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """Bounds of the store, the same on every router."""

    ttl_ms: int = 30 * 86_400_000
    """How long a response is kept after its end, and how long it may run; without a lease it may run for a day."""
    lease_ms: int = 2_000
    """How long an owner may be silent."""
    tenant_responses: int = 10_000
    tenant_bytes: int = 256 << 20
    """Bytes of one tenant's responses, as stored: compressed, with what they asked for."""


@dataclass(frozen=True, slots=True)
class ResponseName:
    """Name of a response; it belongs to one tenant."""

    tenant: str
    response_id: str


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """A response as stored."""

    name: ResponseName
    request: bytes
    """What it asked for; opaque to the store."""
    result: bytes = b""
    """What came of it, opaque too; empty while it runs."""
    started: bool = False
    """Whether it has left the queue."""
    journal: int = 0
    """Number of its newest journal; 0 before the first one."""
    run: str = ""
    """Id of the cluster's request that makes its output, where it was noted."""
    place: bytes = b""
    """Resume token of that request; empty where none was noted."""
    leased: bool = False
    """Whether it has an owner, or waits for one."""
    age_s: float = 0.0
    """Seconds since it was created."""

    @property
    def ended(self) -> bool:
        """Whether it can no longer change."""
        return bool(self.result)

    @property
    def known(self) -> bool:
        """Whether there is anything to tell of it. An answer that came whole has a record before it has a result."""
        return bool(self.request or self.result)


@dataclass(frozen=True, slots=True)
class ResponseClaim:
    """Right to run a response."""

    name: ResponseName
    token: str


@dataclass(frozen=True, slots=True)
class Held:
    """State of a response whose lease was renewed."""

    cancelled: bool
    """Whether its tenant wants it to end."""
    unread_s: float
    """Seconds since a reader at another router last looked, or since the lease began."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What a reader at another router sees."""

    record: ResponseRecord
    chunks: Sequence[bytes]
    """Chunks of the newest journal, from the one that was asked for."""
    owned: bool
    """Whether its owner has renewed the lease in time."""


class ResponseStore(Protocol):
    """Store of all responses of a cluster. Every method may raise QueueUnavailableError."""

    async def create(self, claim: ResponseClaim, request: bytes, *, leased: bool) -> bool:
        """Store a new response. Return False, and change nothing, where one has its id.

        Raises:
            ResponseLimitError: the tenant's running responses take all that it may store.
        """
        ...

    async def get(self, name: ResponseName) -> ResponseRecord | None:
        """Return a response; None if its tenant has none of this id."""
        ...

    async def claim(self, name: ResponseName, *, force: bool = False) -> ResponseClaim | None:
        """Take a response that runs, and lease it. Return None if it has ended, or its owner is alive; with `force`
        only if it has ended.
        """
        ...

    async def renew(self, claim: ResponseClaim) -> Held | None:
        """Prolong the lease. Return None if the claim does not hold any more."""
        ...

    async def release(self, claim: ResponseClaim) -> None:
        """Let any router claim the response at once; do nothing if the claim does not hold any more."""
        ...

    async def note(
        self,
        claim: ResponseClaim,
        journal: int,
        number: int,
        chunk: bytes,
        *,
        started: bool,
        run: str = "",
        place: bytes = b"",
    ) -> bool:
        """Write a chunk of a journal, which replaces an earlier journal. Return False if the claim does not hold.

        `run` and `place` are the id and the resume token of the cluster's request, where they are new.
        """
        ...

    async def follow(self, name: ResponseName, journal: int, first: int, *, request: bool = True) -> Followed | None:
        """Read on, from chunk `first` of a journal, 0 being any; from the beginning where there is a newer one. The
        owner hears that somebody reads. Return None if there is no such response.

        Without `request` the record lacks what it asked for, which may be megabytes of images.
        """
        ...

    async def finish(self, claim: ResponseClaim, result: bytes, *, run: str = "") -> bool:
        """Store the result. Return False if the claim does not hold any more. `run` is the id of the cluster's request,
        where it was not noted.
        """
        ...

    async def cancel(self, name: ResponseName) -> None:
        """Tell the owner that the response should end; do nothing if it has ended."""
        ...

    async def delete(self, name: ResponseName, *, claim: ResponseClaim | None = None) -> bool:
        """Forget a response; with a claim, only while that holds. Return whether there was one."""
        ...

    async def sweep(self) -> Sequence[ResponseName]:
        """Delete some responses that are due. Return some that run and whose owner is silent, longest silence first."""
        ...

    async def close(self) -> None:
        """Close the connection; may be called twice."""
        ...
