"""The job store's contract: durable batches, and who may change them.

While a job is UPLOADING, its items are written in blocks. `seal` ends the upload and opens the job. One router at a
time feeds an open job: it holds the job's lease under a random token, which fences all that it does to the job by
equality. An item is pending until it has a result, and at most one result is ever stored for it. Only the feeder knows
what is in flight. So a feeder that disappears leaves nothing behind: its items are still pending.

A file is an upload that is kept, so that jobs can begin on its items. Such a job reads the file's items and stores no
copy. A file that is deleted meanwhile stays, hidden, until the job ends. If it ends before all items had run the file
stays as long as its results, because the file alone names the others.

A store may lose a part of a job: Redis evicts keys, and people delete them. An open job that lacks a part ends as
FAILED, at the latest when it is claimed, renewed or swept. The results that are left can be read.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class JobState(enum.StrEnum):
    """State of a job. The values are stored."""

    UPLOADING = "uploading"
    """Not sealed yet, and not visible to clients."""
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"
    """A part of it is lost, so that it can't go on."""

    @property
    def open(self) -> bool:
        """Whether items may still run."""
        return self in (JobState.QUEUED, JobState.RUNNING)

    @property
    def ended(self) -> bool:
        """Whether the job can no longer change."""
        return self in (JobState.SUCCEEDED, JobState.CANCELLED, JobState.EXPIRED, JobState.FAILED)


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Bounds of the store, the same on every router of a pool. Bytes are counted as stored: compressed, bodies and
    results together.
    """

    lease_ms: int = 10_000
    """How long a feeder may be silent before another takes over."""
    upload_ms: int = 600_000
    """How long an upload may be silent before it is dropped."""
    ttl_ms: int = 7 * 86_400_000
    """How long a job is kept after its end."""
    tenant_feeding: int = 4
    """Jobs of one tenant that all routers together feed at once."""
    tenant_jobs: int = 1_000
    tenant_items: int = 1_000_000
    tenant_bytes: int = 1 << 30
    max_jobs: int = 10_000
    max_items: int = 5_000_000
    max_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True)
class JobUsage:
    """Sum of the use of results."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    gpu_seconds: float = 0.0
    cost: float = 0.0
    reasoning_tokens: int = 0

    def __add__(self, other: JobUsage) -> JobUsage:
        return JobUsage(
            self.prompt_tokens + other.prompt_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.gpu_seconds + other.gpu_seconds,
            self.cost + other.cost,
            self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Job as stored. Times are milliseconds since the epoch by the store's clock, 0 for never."""

    job_id: str
    tenant: str
    state: JobState
    header: bytes
    """Description by the caller; opaque to the store."""
    key: str = ""
    """Client key of the job; empty for none."""
    digest: str = ""
    """Digest of the content, to recognize a repeated submission."""
    created_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    due_ms: int = 0
    """Time when it expires while open; once it ended, time when it is deleted."""
    items: int = 0
    blocks: int = 0
    results: int = 0
    failed: int = 0
    """Results that are errors."""
    holder: str = ""
    """Router that feeds it; empty for none."""
    usage: JobUsage = JobUsage()
    lost: str = ""
    """Part that the store lost, for a job that failed."""
    note: bytes = b""
    """Further description of a file, or of a job on one; opaque to the store."""
    kept: bool = False
    """Whether it is a file that can be seen."""
    output_bytes: int = 0
    """Sum of `ItemResult.line_bytes` of results that are no errors."""
    error_bytes: int = 0
    """The same of errors."""
    dropped: str = ""
    """Names of results that were deleted, as `discard` got them."""


@dataclass(frozen=True, slots=True)
class JobClaim:
    """Right to feed a job."""

    record: JobRecord
    token: str


@dataclass(frozen=True, slots=True)
class Backlog:
    """Work of a job that is still to do."""

    sizes: Sequence[int]
    """Items per block, in order."""
    done: bytes
    """Bitmap of items that have a result, most significant bit first; missing bits are 0."""


@dataclass(frozen=True, slots=True)
class ItemResult:
    """Result of an item."""

    body: bytes
    failed: bool = False
    usage: JobUsage = JobUsage()
    line_bytes: int = 0
    """Bytes of its line in a file of results."""


@dataclass(frozen=True, slots=True)
class FileJob:
    """A job that begins on the items of a file."""

    header: bytes
    note: bytes
    key: str
    """Client key of the job; empty for none."""
    digest: str
    run_within_ms: int
    ttl_ms: int
    """How long it is kept after its end."""
    failed: bool = False
    """Whether it failed before it began."""


@dataclass(frozen=True, slots=True)
class JobCursor:
    """Place in a tenant's list: a job and the time of its creation."""

    created_ms: int
    job_id: str


class JobStore(Protocol):
    """Store of one pool's jobs. Every method may raise QueueUnavailableError."""

    # --- uploading ----------------------------------------------------------------------------------------------------

    async def create(self, job_id: str, tenant: str, header: bytes) -> None:
        """Begin an upload.

        Raises:
            JobLimitError: the tenant or the store has too many jobs.
        """
        ...

    async def append(self, job_id: str, at: int, items: Sequence[bytes]) -> None:
        """Add a block of items after the first `at` items, which must be there.

        Raises:
            JobLimitError: the tenant or the store has too many items or bytes.
            JobNotFoundError: the upload was dropped, or does not have `at` items.
        """
        ...

    async def seal(self, job_id: str, key: str, digest: str, run_within_ms: int) -> JobRecord:
        """End the upload, open the job and return it. If another job has the tenant's key, return that one and leave
        the upload as it is.

        Raises:
            JobNotFoundError: the upload was dropped, or lacks a part.
        """
        ...

    # --- files --------------------------------------------------------------------------------------------------------

    async def keep(self, job_id: str, header: bytes, note: bytes, keep_ms: int) -> JobRecord:
        """End the upload and keep it as a file for so long. Return it.

        Raises:
            JobNotFoundError: the upload was dropped, or lacks a part.
        """
        ...

    async def begin(self, job_id: str, file: JobRecord, job: FileJob) -> JobRecord:
        """Open a job on the items of a file and return it. Its id is from `id_on`. If another job has the tenant's key,
        return that one.

        Raises:
            JobLimitError: the tenant or the store has too many jobs or items.
            JobNotFoundError: the file is gone, or lacks a part.
        """
        ...

    async def list_files(self, tenant: str) -> list[JobRecord]:
        """Return all files of a tenant, newest first."""
        ...

    async def discard(self, job_id: str, names: str, *, remove: bool) -> None:
        """Note which results of a job that has ended were deleted; with `remove` delete all of them. Do nothing to
        another job.
        """
        ...

    # --- reading ------------------------------------------------------------------------------------------------------

    async def get(self, job_id: str) -> JobRecord | None:
        """Return a job; None if there is none."""
        ...

    async def find(self, tenant: str, key: str) -> JobRecord | None:
        """Return the tenant's job with that client key; None if there is none."""
        ...

    async def list_jobs(self, tenant: str, before: JobCursor | None, limit: int) -> list[JobRecord]:
        """Return up to `limit` sealed jobs of a tenant, newest first; with `before` only older ones than that place."""
        ...

    async def results(self, job_id: str, offset: int, limit: int) -> list[bytes]:
        """Return up to `limit` results from `offset` on, in the order in which they were stored."""
        ...

    # --- feeding ------------------------------------------------------------------------------------------------------

    async def claim(self, holder: str, *, takeover: bool) -> JobClaim | None:
        """Take an open job that no router feeds, the one that has waited longest first. Return None if there is none.
        With `takeover` also take a job whose feeder let its lease run out.
        """
        ...

    async def renew(self, claim: JobClaim) -> JobRecord:
        """Prolong the lease; return the job as it is now.

        Raises:
            JobLeaseLostError: the job has another feeder, has ended, or is gone.
        """
        ...

    async def release(self, claim: JobClaim) -> None:
        """Give the job back; do nothing if the claim does not hold any more."""
        ...

    async def backlog(self, job_id: str) -> Backlog:
        """Return the sizes of a job's blocks and the items that are done."""
        ...

    async def block(self, job_id: str, number: int) -> list[bytes]:
        """Return the items of a block; empty if the job has ended, or the file is gone."""
        ...

    async def store(self, claim: JobClaim, item: int, result: ItemResult) -> bool:
        """Store an item's result; the last one ends the job. Return False if the item has a result already.

        Raises:
            JobLeaseLostError: as in `renew`.
            JobLimitError: the tenant or the store has too many bytes. A failed result is always stored.
        """
        ...

    async def count_failure(self, claim: JobClaim, item: int, execution: str) -> int:
        """Note that an execution of an item failed; return how many failed so far, under all feeders. The newest one
        counts once, however often it is told.

        Raises:
            JobLeaseLostError: as in `renew`.
        """
        ...

    # --- ends ---------------------------------------------------------------------------------------------------------

    async def cancel(self, job_id: str) -> None:
        """End an open job as CANCELLED; do nothing if it has ended or does not exist."""
        ...

    async def delete(self, job_id: str) -> None:
        """Forget everything about a job, an upload or a file; do nothing if it does not exist. A file that an open job
        needs can't be seen any more, and is forgotten after it.
        """
        ...

    async def sweep(self) -> int:
        """Expire jobs, delete jobs and drop uploads that are due, some dozens per call; return how many. Also look
        whether some others are whole.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
