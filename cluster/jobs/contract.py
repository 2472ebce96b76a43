"""The job store's contract: what a durable batch is, and who may do what to it.

A job is written in blocks of items while it is UPLOADING, and sealed; from then on it is open. One router at a time
feeds an open job: it holds the job's lease under a random token, and whatever it does to the job is fenced by equality
of that token. An item is pending until it has a result, and at most one result is ever stored for it. What is in
flight is known to the feeder alone, so that a feeder that vanishes leaves nothing behind: its items are pending.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class JobState(enum.StrEnum):
    """Is the state of a job. The words are stored."""

    UPLOADING = "uploading"
    """Not sealed yet; nobody sees it."""
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def open(self) -> bool:
        """Whether items may still run."""
        return self in (JobState.QUEUED, JobState.RUNNING)

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self in (JobState.SUCCEEDED, JobState.CANCELLED, JobState.EXPIRED)


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Are the store's bounds; the same on every router of a pool. Bytes are counted as stored: compressed, bodies and
    results together.
    """

    lease_ms: int = 10_000
    """How long a feeder may be silent before another takes over."""
    upload_ms: int = 600_000
    """How long an upload may be silent before it is dropped."""
    ttl_ms: int = 7 * 86_400_000
    """How long a job is kept after its end."""
    tenant_feeding: int = 4
    """Jobs of one tenant that are fed at once, over all routers."""
    tenant_jobs: int = 1_000
    tenant_items: int = 1_000_000
    tenant_bytes: int = 1 << 30
    max_jobs: int = 10_000
    max_items: int = 5_000_000
    max_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True)
class JobUsage:
    """Adds up what results used."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    gpu_seconds: float = 0.0
    cost: float = 0.0

    def __add__(self, other: JobUsage) -> JobUsage:
        return JobUsage(
            self.prompt_tokens + other.prompt_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.gpu_seconds + other.gpu_seconds,
            self.cost + other.cost,
        )


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Is a job as stored. Times are milliseconds since the epoch by the store's clock, 0 for never."""

    job_id: str
    tenant: str
    state: JobState
    header: bytes
    """The caller's own description; the store does not look into it."""
    key: str = ""
    """The client's name for it; empty for none."""
    digest: str = ""
    """Identifies the content, for a repeated submission."""
    created_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    due_ms: int = 0
    """When it expires while open, and when it is deleted once it ended."""
    items: int = 0
    blocks: int = 0
    results: int = 0
    failed: int = 0
    """Results that are errors."""
    holder: str = ""
    """The router that feeds it."""
    usage: JobUsage = JobUsage()


@dataclass(frozen=True, slots=True)
class JobClaim:
    """Is the right to feed a job."""

    record: JobRecord
    token: str


@dataclass(frozen=True, slots=True)
class Backlog:
    """Says what of a job is still to do."""

    sizes: Sequence[int]
    """Items per block, in order."""
    done: bytes
    """A bitmap of items that have a result, most significant bit first; missing bits are 0."""


@dataclass(frozen=True, slots=True)
class ItemResult:
    """Is what an item gave."""

    body: bytes
    failed: bool = False
    usage: JobUsage = JobUsage()


@dataclass(frozen=True, slots=True)
class JobCursor:
    """Is a place in a tenant's list: a job and when it was created."""

    created_ms: int
    job_id: str


class JobStore(Protocol):
    """Keeps the jobs of one pool. Every method may raise QueueUnavailableError."""

    # --- uploading ----------------------------------------------------------------------------------------------------

    async def create(self, job_id: str, tenant: str, header: bytes) -> None:
        """Begin an upload.

        Raises:
            JobLimitError: too many jobs.
        """
        ...

    async def append(self, job_id: str, at: int, items: Sequence[bytes]) -> None:
        """Add a block of items behind the `at` that are there.

        Raises:
            JobLimitError: too many items or bytes.
            JobNotFoundError: the upload was dropped, or is not at `at`.
        """
        ...

    async def seal(self, job_id: str, key: str, digest: str, run_within_ms: int) -> JobRecord:
        """End the upload and open the job; returns the job that has the tenant's key already, if there is one, and
        leaves the upload as it is.

        Raises:
            JobNotFoundError: the upload was dropped.
        """
        ...

    # --- reading ------------------------------------------------------------------------------------------------------

    async def get(self, job_id: str) -> JobRecord | None:
        """Return a job; None when there is none."""
        ...

    async def find(self, tenant: str, key: str) -> JobRecord | None:
        """Return the tenant's job of that key."""
        ...

    async def list_jobs(self, tenant: str, before: JobCursor | None, limit: int) -> list[JobRecord]:
        """Return sealed jobs, newest first, older than a place."""
        ...

    async def results(self, job_id: str, offset: int, limit: int) -> list[bytes]:
        """Return up to `limit` results from an offset, in the order in which they were stored."""
        ...

    # --- feeding ------------------------------------------------------------------------------------------------------

    async def claim(self, holder: str, *, takeover: bool) -> JobClaim | None:
        """Take an open job that nobody feeds, the one that waits longest first, or None. With `takeover` also one whose
        feeder let its lease run out.
        """
        ...

    async def renew(self, claim: JobClaim) -> JobRecord:
        """Prolong the lease; returns the job as it stands.

        Raises:
            JobLeaseLostError: the job has another feeder, has ended, or is gone.
        """
        ...

    async def release(self, claim: JobClaim) -> None:
        """Give the job back; nothing happens when it is not held any more."""
        ...

    async def backlog(self, job_id: str) -> Backlog:
        """Return what is to do."""
        ...

    async def block(self, job_id: str, number: int) -> list[bytes]:
        """Return the items of a block; empty when the job ended."""
        ...

    async def store(self, claim: JobClaim, item: int, result: ItemResult) -> bool:
        """Store an item's result; the last one ends the job. False when the item has one already.

        Raises:
            JobLeaseLostError: see `renew`.
            JobLimitError: too many bytes; a result that says what failed is always taken.
        """
        ...

    async def count_failure(self, claim: JobClaim, item: int) -> int:
        """Note that an execution of an item failed; returns how many did, over all feeders.

        Raises:
            JobLeaseLostError: see `renew`.
        """
        ...

    # --- ends ---------------------------------------------------------------------------------------------------------

    async def cancel(self, job_id: str) -> None:
        """End an open job as CANCELLED; nothing happens to one that has ended or does not exist."""
        ...

    async def delete(self, job_id: str) -> None:
        """Forget everything about a job, or drop an upload; nothing happens when it does not exist."""
        ...

    async def sweep(self) -> int:
        """Expire, delete and drop what is due, some dozens per call; returns how many."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...
