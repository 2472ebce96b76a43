"""The job store in memory: the same rules as `redis/store.py`, for tests and simulations."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cluster.clock import Clock, SystemClock
from cluster.errors import JobLeaseLostError, JobLimitError, JobNotFoundError
from cluster.jobs.blob import pack_blob, pack_block, unpack_blob, unpack_block
from cluster.jobs.checks import check_names
from cluster.jobs.contract import Backlog, FileJob, ItemResult, JobClaim, JobCursor, JobLimits, JobRecord, JobState
from cluster.jobs.ids import file_of
from cluster.jobs.steps import ClockSteps

_DEFERRED_MS = 1000
_HIDDEN_MS = 60_000


@dataclass(slots=True)
class _Job:
    record: JobRecord
    token: str = ""
    claimable_ms: int = 0
    blocks: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    results: list[bytes] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    failures: Counter[int] = field(default_factory=Counter)
    body_bytes: int = 0
    result_bytes: int = 0
    ttl_ms: int = 0

    @property
    def stored_bytes(self) -> int:
        return self.body_bytes + self.result_bytes


class MemoryJobs:
    """Jobs of one pool, shared by all its in-memory stores."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.jobs: dict[str, _Job] = {}
        """Jobs by id, in order of creation."""


class MemoryJobStore:
    """One pool's job store in this process."""

    def __init__(self, shared: MemoryJobs, limits: JobLimits | None = None) -> None:
        self.limits = limits or JobLimits()
        self._shared = shared
        self._steps = ClockSteps(self.limits.lease_ms)
        self._jobs = shared.jobs

    # --- uploading ----------------------------------------------------------------------------------------------------

    async def create(self, job_id: str, tenant: str, header: bytes) -> None:
        check_names(job_id, tenant)
        mine = [job for job in self._jobs.values() if job.record.tenant == tenant]
        self._bound("tenant_jobs", len(mine) + 1)
        self._bound("max_jobs", len(self._jobs) + 1)
        now = self._now()
        due = now + self.limits.upload_ms
        record = JobRecord(job_id, tenant, JobState.UPLOADING, header, created_ms=now, due_ms=due)
        self._jobs[job_id] = _Job(record)

    async def append(self, job_id: str, at: int, items: Sequence[bytes]) -> None:
        job = self._jobs.get(job_id)
        if job is None or job.record.state is not JobState.UPLOADING or job.record.kept or job.record.items != at:
            raise JobNotFoundError(job_id)
        block = pack_block(items)
        mine = [other for other in self._jobs.values() if other.record.tenant == job.record.tenant]
        for what, jobs in (("tenant", mine), ("max", list(self._jobs.values()))):
            self._bound(f"{what}_items", sum(other.record.items for other in jobs) + len(items))
        for what, jobs in (("tenant", mine), ("max", list(self._jobs.values()))):
            self._bound(f"{what}_bytes", sum(other.stored_bytes for other in jobs) + len(block))
        job.blocks.append(block)
        job.body_bytes += len(block)
        job.sizes.append(len(items))
        due = self._now() + self.limits.upload_ms
        job.record = replace(job.record, items=at + len(items), blocks=len(job.blocks), due_ms=due)

    async def seal(self, job_id: str, key: str, digest: str, run_within_ms: int) -> JobRecord:
        job = self._jobs.get(job_id)
        if job is None or job.record.state is not JobState.UPLOADING or job.record.kept or _lost_part(job):
            raise JobNotFoundError(job_id)
        if key and (other := await self.find(job.record.tenant, key)) is not None:
            return other
        now = self._now()
        job.claimable_ms = now
        job.record = replace(
            job.record, key=key, digest=digest, state=JobState.QUEUED, created_ms=now, due_ms=now + run_within_ms
        )
        return job.record

    # --- files --------------------------------------------------------------------------------------------------------

    async def keep(self, job_id: str, header: bytes, note: bytes, keep_ms: int) -> JobRecord:
        job = self._jobs.get(job_id)
        if job is None or job.record.state is not JobState.UPLOADING or job.record.kept or _lost_part(job):
            raise JobNotFoundError(job_id)
        now = self._now()
        job.record = replace(job.record, header=header, note=note, kept=True, created_ms=now, due_ms=now + keep_ms)
        return job.record

    async def begin(self, job_id: str, file: JobRecord, job: FileJob) -> JobRecord:
        check_names(job_id, file.tenant)
        source = self._jobs.get(file.job_id)
        if source is None or _lost_part(source):
            raise JobNotFoundError(file.job_id)
        if job.key and (other := await self.find(file.tenant, job.key)) is not None:
            return other
        mine = [each.record for each in self._jobs.values() if each.record.tenant == file.tenant]
        every = [each.record for each in self._jobs.values()]
        for what, records in (("tenant", mine), ("max", every)):
            self._bound(f"{what}_jobs", len(records) + 1)
        for what, records in (("tenant", mine), ("max", every)):
            self._bound(f"{what}_items", sum(each.items for each in records) + file.items)
        now = self._now()
        record = JobRecord(
            job_id,
            file.tenant,
            JobState.FAILED if job.failed else JobState.QUEUED,
            job.header,
            job.key,
            job.digest,
            created_ms=now,
            ended_ms=now if job.failed else 0,
            due_ms=now + (job.ttl_ms if job.failed else job.run_within_ms),
            items=file.items,
            blocks=file.blocks,
            note=job.note,
        )
        self._jobs[job_id] = _Job(record, claimable_ms=now, blocks=source.blocks, sizes=source.sizes, ttl_ms=job.ttl_ms)
        return record

    async def list_files(self, tenant: str) -> list[JobRecord]:
        records = [job.record for job in self._jobs.values() if job.record.tenant == tenant and job.record.kept]
        return sorted(records, key=lambda record: (record.created_ms, record.job_id), reverse=True)

    async def discard(self, job_id: str, names: str, *, remove: bool) -> None:
        job = self._jobs.get(job_id)
        if job is None or not job.record.state.ended:
            return
        job.record = replace(job.record, dropped=names)
        if remove:
            job.results, job.result_bytes = [], 0

    # --- reading ------------------------------------------------------------------------------------------------------

    async def get(self, job_id: str) -> JobRecord | None:
        job = self._jobs.get(job_id)
        return None if job is None else job.record

    async def find(self, tenant: str, key: str) -> JobRecord | None:
        records = (job.record for job in self._jobs.values())
        return next((r for r in records if key and (r.tenant, r.key) == (tenant, key)), None)

    async def list_jobs(self, tenant: str, before: JobCursor | None, limit: int) -> list[JobRecord]:
        mine = [
            (job.record.created_ms, job.record.job_id, job.record)
            for job in self._jobs.values()
            if job.record.tenant == tenant and job.record.state is not JobState.UPLOADING
        ]
        mine.sort(key=lambda entry: entry[:2], reverse=True)
        place = None if before is None else (before.created_ms, before.job_id)
        return [record for *at, record in mine if place is None or tuple(at) < place][:limit]

    async def results(self, job_id: str, offset: int, limit: int) -> list[bytes]:
        job = self._jobs.get(job_id)
        return [] if job is None else [unpack_blob(blob) for blob in job.results[offset : offset + limit]]

    # --- feeding ------------------------------------------------------------------------------------------------------

    async def claim(self, holder: str, *, takeover: bool) -> JobClaim | None:
        now, far_ms = self._now(), 2 * self.limits.lease_ms
        takeover &= self._steps.believes(now, self._shared.clock.monotonic())
        waiting = [
            job for job in self._jobs.values() if job.record.state.open and not 0 < job.claimable_ms - now <= far_ms
        ]
        for job in sorted(waiting, key=lambda job: (job.claimable_ms, job.record.job_id)):
            if self._end_if_torn(job):
                continue
            if job.record.holder:
                if not takeover:
                    continue
            elif self._feeding(job.record.tenant) >= self.limits.tenant_feeding:
                job.claimable_ms = now + _DEFERRED_MS
                continue
            job.token = secrets.token_hex(12)
            job.claimable_ms = now + self.limits.lease_ms
            started = job.record.started_ms or now
            job.record = replace(job.record, state=JobState.RUNNING, holder=holder, started_ms=started)
            return JobClaim(job.record, job.token)
        return None

    def _feeding(self, tenant: str) -> int:
        return sum(bool(job.record.holder) for job in self._jobs.values() if job.record.tenant == tenant)

    async def renew(self, claim: JobClaim) -> JobRecord:
        job = self._whole(claim)
        job.claimable_ms = self._now() + self.limits.lease_ms
        return job.record

    async def release(self, claim: JobClaim) -> None:
        job = self._jobs.get(claim.record.job_id)
        if job is not None and job.token == claim.token:
            job.token = ""
            job.claimable_ms = job.record.created_ms
            job.record = replace(job.record, holder="")

    async def backlog(self, job_id: str) -> Backlog:
        job = self._jobs.get(job_id)
        if job is None:
            return Backlog((), b"")
        bits = bytearray(max(job.done, default=-1) // 8 + 1)
        for item in job.done:
            bits[item // 8] |= 0x80 >> item % 8
        return Backlog(tuple(job.sizes), bytes(bits))

    async def block(self, job_id: str, number: int) -> list[bytes]:
        job = self._jobs.get(job_id)
        return [] if job is None or number >= len(job.blocks) else unpack_block(job.blocks[number])

    async def store(self, claim: JobClaim, item: int, result: ItemResult) -> bool:
        job = self._whole(claim)
        if item in job.done:
            return False
        blob = pack_blob(result.body)
        if not result.failed:
            mine = [other for other in self._jobs.values() if other.record.tenant == job.record.tenant]
            for what, jobs in (("tenant", mine), ("max", list(self._jobs.values()))):
                self._bound(f"{what}_bytes", sum(other.stored_bytes for other in jobs) + len(blob))
        job.done.add(item)
        job.failures.pop(item, None)
        job.results.append(blob)
        job.result_bytes += len(job.results[-1])
        record = job.record
        job.record = replace(
            record,
            results=len(job.results),
            failed=record.failed + int(result.failed),
            output_bytes=record.output_bytes + (0 if result.failed else result.line_bytes),
            error_bytes=record.error_bytes + (result.line_bytes if result.failed else 0),
            usage=record.usage + result.usage,
        )
        if len(job.results) == record.items:
            self._finish(job, JobState.SUCCEEDED)
        return True

    async def count_failure(self, claim: JobClaim, item: int) -> int:
        job = self._held(claim)
        job.failures[item] += 1
        return job.failures[item]

    # --- ends ---------------------------------------------------------------------------------------------------------

    async def cancel(self, job_id: str) -> None:
        job = self._jobs.get(job_id)
        if job is not None and job.record.state.open:
            self._finish(job, JobState.CANCELLED)

    async def delete(self, job_id: str) -> None:
        if (job := self._jobs.get(job_id)) is not None:
            self._remove(job)

    async def sweep(self) -> int:
        now = self._now()
        due = [job for job in self._jobs.values() if job.record.due_ms <= now]
        for job in due:
            if job.record.state.open:
                self._finish(job, JobState.EXPIRED)
            else:
                self._remove(job)
        for job in self._jobs.values():
            self._end_if_torn(job)
        return len(due)

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    # --- parts --------------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        return self._shared.clock.wall_ms()

    def _held(self, claim: JobClaim) -> _Job:
        job = self._jobs.get(claim.record.job_id)
        if job is None or job.token != claim.token:
            raise JobLeaseLostError(claim.record.job_id)
        return job

    def _whole(self, claim: JobClaim) -> _Job:
        job = self._held(claim)
        if self._end_if_torn(job):
            raise JobLeaseLostError(claim.record.job_id)
        return job

    def _end_if_torn(self, job: _Job) -> bool:
        part = _lost_part(job) if job.record.state.open else ""
        if part:
            self._finish(job, JobState.FAILED)
            job.record = replace(job.record, lost=part)
        return bool(part)

    def _finish(self, job: _Job, state: JobState) -> None:
        now = self._now()
        job.token = ""
        job.blocks, job.sizes, job.body_bytes = [], [], 0
        job.done.clear()
        job.failures.clear()
        due = now + (job.ttl_ms or self.limits.ttl_ms)
        job.record = replace(job.record, state=state, holder="", ended_ms=now, due_ms=due)

    def _remove(self, job: _Job) -> None:
        job_id = job.record.job_id
        if any(file_of(other) == job_id and each.record.state.open for other, each in self._jobs.items()):
            job.record = replace(job.record, kept=False, due_ms=self._now() + _HIDDEN_MS)
        else:
            del self._jobs[job_id]

    def _bound(self, what: str, value: int) -> None:
        limit = int(getattr(self.limits, what))
        if value > limit:
            raise JobLimitError(what, limit)


def _lost_part(job: _Job) -> str:
    record = job.record
    if len(job.results) != record.results:
        return "results"
    if record.state.ended:
        return ""
    if len(job.blocks) != record.blocks:
        return "bodies"
    if len(job.sizes) != record.blocks:
        return "sizes of blocks"
    return "list of finished items" if record.results and not job.done else ""
