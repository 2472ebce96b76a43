"""The job store in Redis."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from typing import Any

from cluster.clock import Clock, SystemClock
from cluster.errors import JobLeaseLostError, JobLimitError, JobNotFoundError
from cluster.jobs.blob import pack_blob, pack_block, unpack_blob, unpack_block
from cluster.jobs.checks import check_names
from cluster.jobs.contract import (
    Backlog,
    FileJob,
    ItemResult,
    JobClaim,
    JobCursor,
    JobLimits,
    JobRecord,
    JobState,
    JobUsage,
)
from cluster.jobs.redis.keys import job_keys, shared_key
from cluster.jobs.steps import ClockSteps
from cluster.redis.connections import RedisTarget
from cluster.redis.pipeline import DEFAULT_TIMEOUT_S
from cluster.redis.store_calls import StoreCalls

_LOG = logging.getLogger(__name__)

_LOOKED_AT = 64
"""Most jobs that one call of redis/lua/look.lua names, for a `claim` or `sweep`."""
_LOOKS = 16
"""Most calls of look.lua in one `claim`. A second call is needed if all named jobs are of tenants that are fed enough;
these jobs are put off for a second."""
_TORN = 2
"""Reply for a job that was ended because Redis lost a part of it."""
_ENDED, _FORGOTTEN = 1, 2
"""Replies of redis/lua/check.lua; the second one also of those that delete."""
_LARGE = 32 << 10
"""Bytes that take a good part of a millisecond to compress."""


class RedisJobStore:
    """One pool's job store in Redis. It has a connection of its own, so that large blocks never delay queue calls."""

    def __init__(
        self,
        target: RedisTarget,
        pool: str,
        limits: JobLimits | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Create the store of the pool with this name. `limits` are the same at every router of the pool; the other
        arguments are those of `StoreCalls`.
        """
        self.pool = pool
        self.limits = limits or JobLimits()
        self._clock = clock or SystemClock()
        self._steps = ClockSteps(self.limits.lease_ms)
        self._checked = 0
        """Rank of the next job to check."""
        self._calls = StoreCalls(target, "cluster.jobs.redis", shared_key(pool, "open"), timeout_s, clock)

    # --- uploading ----------------------------------------------------------------------------------------------------

    async def create(self, job_id: str, tenant: str, header: bytes) -> None:
        check_names(job_id, tenant)
        limits = self.limits
        _bounded(
            await self._run("create", job_id, tenant, header, limits.upload_ms, limits.tenant_jobs, limits.max_jobs)
        )

    async def append(self, job_id: str, at: int, items: Sequence[bytes]) -> None:
        limits = self.limits
        bounds = (limits.tenant_items, limits.max_items, limits.tenant_bytes, limits.max_bytes)
        large = sum(map(len, items)) > _LARGE
        # In a thread, because the caller's event loop has streams to serve.
        block = await asyncio.to_thread(pack_block, items) if large else pack_block(items)
        reply = await self._run("append", job_id, at, len(items), block, limits.upload_ms, *bounds)
        if reply is None:
            raise JobNotFoundError(job_id)
        _bounded(reply)

    async def seal(self, job_id: str, key: str, digest: str, run_within_ms: int) -> JobRecord:
        for _ in range(2):
            winner = await self._run("seal", job_id, key, digest, run_within_ms)
            if winner is None:
                break
            if (record := await self.get(winner.decode())) is not None:
                return record
            # Redis lost the record of the job that has the key.
            upload = await self.get(job_id)
            await self._run("unname", winner.decode(), upload.tenant if upload else "", key)
        raise JobNotFoundError(job_id)

    # --- files --------------------------------------------------------------------------------------------------------

    async def keep(self, job_id: str, header: bytes, note: bytes, keep_ms: int) -> JobRecord:
        kept = await self._run("keep", job_id, header, note, keep_ms)
        record = await self.get(job_id) if kept == 1 else None
        if record is None:
            raise JobNotFoundError(job_id)
        return record

    async def begin(self, job_id: str, file: JobRecord, job: FileJob) -> JobRecord:
        limits = self.limits
        check_names(job_id, file.tenant)
        arguments = (file.tenant, job.header, job.note, job.key, job.digest, job.run_within_ms, job.ttl_ms)
        bounds = (limits.tenant_jobs, limits.max_jobs, limits.tenant_items, limits.max_items)
        for _ in range(2):
            reply = await self._run("begin", job_id, *arguments, file.items, file.blocks, int(job.failed), *bounds)
            if reply is None:
                break
            if len(reply) > 1:
                _bounded(reply)
            winner = reply[0].decode()
            if (record := await self.get(winner)) is not None:
                return record
            # Redis lost the record of the job that has the key.
            await self._run("unname", winner, file.tenant, job.key)
        raise JobNotFoundError(file.job_id)

    async def list_files(self, tenant: str) -> list[JobRecord]:
        files = shared_key(self.pool, "files")
        members = await self._calls.command("ZREVRANGEBYLEX", files, f"({tenant}\x01", f"[{tenant}\0")
        records = await asyncio.gather(*(self.get(_id_of(member)) for member in members))
        return [record for record in records if record is not None]

    async def discard(self, job_id: str, names: str, *, remove: bool) -> None:
        await self._run("discard", job_id, names, int(remove))

    # --- reading ------------------------------------------------------------------------------------------------------

    async def get(self, job_id: str) -> JobRecord | None:
        return _record(job_id, await self._calls.command("HGETALL", self._key(job_id, 0)))

    async def find(self, tenant: str, key: str) -> JobRecord | None:
        found = await self._calls.command("HGET", shared_key(self.pool, "names"), f"{tenant}\0{key}")
        return None if found is None else await self.get(found.decode())

    async def list_jobs(self, tenant: str, before: JobCursor | None, limit: int) -> list[JobRecord]:
        start = f"({_member(tenant, before)}" if before is not None else f"({tenant}\x01"
        index = shared_key(self.pool, "index")
        found: list[JobRecord] = []
        while (left := limit - len(found)) > 0:
            members = await self._calls.command("ZREVRANGEBYLEX", index, start, f"[{tenant}\0", "LIMIT", 0, left)
            ids = [_id_of(member) for member in members]
            records = await asyncio.gather(*(self.get(job_id) for job_id in ids))
            found += [record for record in records if record is not None]
            if len(members) < left:
                break
            # Jobs that were deleted meanwhile must not look like the end of the list.
            start = f"({members[-1].decode()}"
        return found

    async def results(self, job_id: str, offset: int, limit: int) -> list[bytes]:
        found = await self._calls.command("HMGET", self._key(job_id, 3), *range(offset, offset + limit))
        # Stored offsets have no gaps, so the first missing one is the end.
        end = next((index for index, blob in enumerate(found) if blob is None), len(found))
        return [unpack_blob(blob) for blob in found[:end]]

    # --- feeding ------------------------------------------------------------------------------------------------------

    async def claim(self, holder: str, *, takeover: bool) -> JobClaim | None:
        token = secrets.token_hex(12)
        before: list[bytes] = []
        for _ in range(_LOOKS):
            candidates, _due, now, *_ = await self._run("look", "", _LOOKED_AT, self.limits.lease_ms, 0)
            takeover &= self._steps.believes(now, self._clock.monotonic())
            for candidate in candidates:
                job_id = candidate.decode()
                options = (self.limits.lease_ms, int(takeover), self.limits.tenant_feeding, self.limits.ttl_ms)
                reply = await self._run("claim", job_id, holder, token, *options)
                if reply == 1:
                    record = await self.get(job_id)
                    return None if record is None else JobClaim(record, token)
                self._note_torn(job_id, reply)
            if len(candidates) < _LOOKED_AT or candidates == before:
                break
            before = candidates
        return None

    async def renew(self, claim: JobClaim) -> JobRecord:
        job_id = claim.record.job_id
        # Both go out in one pipeline, in this order.
        renewed, record = await asyncio.gather(
            self._run("renew", job_id, claim.token, self.limits.lease_ms, self.limits.ttl_ms), self.get(job_id)
        )
        self._note_torn(job_id, renewed)
        if renewed != 1 or record is None:
            raise JobLeaseLostError(job_id)
        return record

    async def release(self, claim: JobClaim) -> None:
        await self._run("release", claim.record.job_id, claim.token)

    async def backlog(self, job_id: str) -> Backlog:
        sizes, done = await asyncio.gather(
            self._calls.command("LRANGE", self._key(job_id, 2), 0, -1), self._calls.command("GET", self._key(job_id, 4))
        )
        return Backlog(tuple(map(int, sizes)), done or b"")

    async def block(self, job_id: str, number: int) -> list[bytes]:
        blob = await self._calls.command("HGET", self._key(job_id, 1), number)
        return [] if blob is None else unpack_block(blob)

    async def store(self, claim: JobClaim, item: int, result: ItemResult) -> bool:
        job_id, used = claim.record.job_id, result.usage
        tokens = (used.prompt_tokens, used.output_tokens, used.cached_tokens)
        floats = (f"{used.gpu_seconds:.9f}", f"{used.cost:.12f}")
        body = result.body
        blob = await asyncio.to_thread(pack_blob, body) if len(body) > _LARGE else pack_blob(body)
        stored = await self._run(
            "store",
            job_id,
            claim.token,
            item,
            blob,
            int(result.failed),
            *tokens,
            *floats,
            self.limits.ttl_ms,
            self.limits.tenant_bytes,
            self.limits.max_bytes,
            result.line_bytes,
            used.reasoning_tokens,
        )
        if isinstance(stored, list):
            _bounded(stored)
        else:
            self._note_torn(job_id, -stored)
        return bool(_held(job_id, stored))

    async def count_failure(self, claim: JobClaim, item: int, execution: str) -> int:
        job_id = claim.record.job_id
        return _held(job_id, await self._run("fail", job_id, claim.token, item, execution))

    # --- ends ---------------------------------------------------------------------------------------------------------

    async def cancel(self, job_id: str) -> None:
        await self._run("cancel", job_id, self.limits.ttl_ms)

    async def delete(self, job_id: str) -> None:
        if await self._run("delete", job_id) == _FORGOTTEN:
            await self._recount()

    async def sweep(self) -> int:
        limits = self.limits
        look = await self._run("look", "", _LOOKED_AT, limits.lease_ms, self._checked)
        _candidates, due, _now, ids, members, uncounted = look
        done = await asyncio.gather(*(self._run("expire", job_id.decode(), limits.ttl_ms) for job_id in due))
        # Every job has its turn after a while.
        self._checked = self._checked + max(len(ids), len(members)) if ids or members else 0
        found = {job_id.decode(): b"" for job_id in ids} | {_id_of(member): member for member in members}
        bounds = (limits.ttl_ms, limits.upload_ms, limits.lease_ms)
        replies = await asyncio.gather(*(self._run("check", each, *bounds, member) for each, member in found.items()))
        for job_id, reply in zip(found, replies, strict=True):
            if reply == _ENDED:
                self._note_torn(job_id, _TORN)
        if uncounted or _FORGOTTEN in (*replies, *done):
            await self._recount()
        return sum(map(bool, done))

    async def _recount(self) -> None:
        ids = [job_id.decode() for job_id in await self._calls.command("ZRANGE", shared_key(self.pool, "due"), 0, -1)]
        keys = (*job_keys(self.pool, ""), *(self._key(job_id, 0) for job_id in ids))
        # If a job came or went meanwhile nothing changes, and the next turn counts.
        await self._calls.run("recount", keys, self._calls.now, "", *ids)

    async def close(self) -> None:
        await self._calls.close()

    # --- transport ----------------------------------------------------------------------------------------------------

    def _key(self, job_id: str, number: int) -> str:
        return job_keys(self.pool, job_id)[number]

    def _note_torn(self, job_id: str, reply: int) -> None:
        if reply == _TORN:
            _LOG.error("job.part_lost", extra={"pool": self.pool, "job": job_id})

    async def _run(self, name: str, job_id: str, *arguments: str | bytes | float) -> Any:
        return await self._calls.run(name, job_keys(self.pool, job_id), self._calls.now, job_id, *arguments)


def _bounded(reply: Sequence[bytes]) -> None:
    if reply:
        raise JobLimitError(reply[0].decode(), int(reply[1]))


def _held(job_id: str, reply: int) -> int:
    if reply < 0:
        raise JobLeaseLostError(job_id)
    return reply


def _member(tenant: str, cursor: JobCursor) -> str:
    return f"{tenant}\0{cursor.created_ms:016d}\0{cursor.job_id}"


def _id_of(member: bytes) -> str:
    return member.decode().rsplit("\0", 1)[1]


def _record(job_id: str, flat: Sequence[bytes]) -> JobRecord | None:
    if not flat:
        return None
    fields = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}

    def text(name: str) -> str:
        return fields.get(name, b"").decode()

    def number(name: str) -> int:
        return int(fields.get(name, 0) or 0)

    return JobRecord(
        job_id=job_id,
        tenant=text("tenant"),
        state=JobState.FAILED if text("lost") else JobState(text("state")),
        header=fields.get("header", b""),
        key=text("key"),
        digest=text("digest"),
        created_ms=number("created"),
        started_ms=number("started"),
        ended_ms=number("ended"),
        due_ms=number("due"),
        items=number("items"),
        blocks=number("blocks"),
        results=number("results"),
        failed=number("failed"),
        holder=text("holder"),
        lost=text("lost"),
        note=fields.get("note", b""),
        kept=text("kept") == "file",
        output_bytes=number("written"),
        error_bytes=number("errors"),
        dropped=text("dropped"),
        usage=JobUsage(
            prompt_tokens=number("prompt"),
            output_tokens=number("output"),
            cached_tokens=number("cached"),
            gpu_seconds=float(fields.get("gpu", 0)),
            cost=float(fields.get("cost", 0)),
            reasoning_tokens=number("reasoning"),
        ),
    )
