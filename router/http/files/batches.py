"""Batches of a tenant: jobs on the lines of a file."""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.errors import (
    BatchUnknownError,
    FileUnknownError,
    JobExistsError,
    JobNotFoundError,
    ModelNotFoundError,
    QueueUnavailableError,
)
from cluster.jobs.contract import FileJob, JobCursor, JobRecord, JobStore
from cluster.jobs.ids import id_on, is_made, pool_of
from cluster.lifecycle import TaskOwner
from penstock.models import RequestClass
from penstock.v1 import jobs_pb2 as api
from penstock.values.objects import INT64, BodyError, Fields, shown
from penstock.wire import duration_to_wire
from router.http.bodies import read_metadata
from router.http.files.endpoints import ENDPOINTS
from router.http.files.ids import FileId, job_of
from router.http.files.library import FileLibrary, batches_of
from router.http.files.notes import BatchNote, FileNote, LineError
from router.http.files.objects import batch_object
from router.identity import Caller, may_use, require_class, require_model
from router.jobs.tools import JobTools, drop
from router.jobs.upload import check_header, stored_header

LEAST_S = 3_600
"""Shortest life of a file that a client may ask for, in seconds, as OpenAI has it."""
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class AskedBatch:
    """A batch that a client asks for."""

    file_id: str
    endpoint: str
    completion_window: str
    window_s: int
    metadata: Mapping[str, str] | None
    keep_s: int | None
    """Seconds for which results are kept; None where the client does not say."""
    key: str
    """Idempotency key; empty for none."""
    ignored: tuple[str, ...]

    def digest(self) -> str:
        """Return the digest of the content, without the key."""
        content = [self.file_id, self.endpoint, self.completion_window, self.metadata, self.keep_s]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_batch(body: Mapping[str, Any], key: str, longest_s: float) -> AskedBatch:
    """Read the body of a request for a batch.

    Args:
        body: a JSON object.
        key: the idempotency key; empty for none.
        longest_s: longest life of results that a client may ask for, in seconds.

    Raises:
        BodyError: a field is missing or wrong.
    """
    fields = Fields("", body, ignore_unknown=True)
    file_id, endpoint = fields.text("input_file_id"), fields.text("endpoint")
    if not file_id:
        raise fields.wrong("input_file_id", "is required")
    if endpoint not in ENDPOINTS:
        problem = f"{shown(endpoint)} is not supported" if endpoint else "is required"
        raise fields.wrong("endpoint", f"{problem}; supported: {', '.join(ENDPOINTS)}")
    window = fields.text("completion_window")
    found = _WINDOW.fullmatch(window)
    if found is None:
        raise fields.wrong("completion_window", f"must be a time such as 24h, got {shown(window)}")
    metadata, keep_s = read_metadata(fields), _keep(fields, longest_s)
    window_s = int(found[1]) * _SECONDS[found[2]]
    return AskedBatch(file_id, endpoint, window, window_s, metadata, keep_s, key, fields.leftovers())


def _keep(fields: Fields, longest_s: float) -> int | None:
    after = fields.object("output_expires_after")
    if after is None:
        return None
    anchor, seconds = after.text("anchor"), after.count("seconds", INT64)
    if anchor != "created_at":
        raise after.wrong("anchor", f"must be created_at, got {shown(anchor)}")
    return check_life(after.wrong("seconds", "").field, seconds, longest_s)


def check_life(field: str, seconds: int | None, longest_s: float) -> int:
    """Return the seconds for which a file is kept.

    Raises:
        BodyError: they are out of range.
    """
    least = min(LEAST_S, int(longest_s))
    if seconds is None or not least <= seconds <= longest_s:
        problem = f"must be at least {least} and at most {longest_s:.0f} (jobs.file_ttl_s), got {seconds}"
        raise BodyError(field, problem)
    return seconds


class Batches:
    """Batches of all tenants, whichever router created them."""

    def __init__(self, tools: JobTools, library: FileLibrary, owner: TaskOwner) -> None:
        """`owner` owns what goes on after a call."""
        self._tools = tools
        self._library = library
        self._owner = owner

    async def create(self, asked: AskedBatch, caller: Caller) -> dict[str, Any]:
        """Begin a batch and return it, or the one that has its key already. A file with errors gives a batch that has
        failed.

        Raises:
            FileUnknownError: the tenant has no such file.
            ModelNotFoundError: the pool that has the file is not served any more.
            JobExistsError: the key belongs to another batch.
            JobLimitError: the tenant or the store has too much.
        """
        known = await self._known(asked, caller)
        if known is not None and known.digest == asked.digest():
            # Its file may be gone by now.
            return batch_object(known)
        try:
            store, file = await self._library.input(asked.file_id, caller)
        except FileUnknownError:
            raise FileUnknownError(asked.file_id, "input_file_id") from None
        note, pool, settings = FileNote.read(file.note), pool_of(file.job_id), self._tools.settings
        errors = _problems(note, asked.endpoint)
        require_class(caller, RequestClass.BATCH)
        # The lines of an alias name it. It may be gone by now.
        model = note.model if self._tools.pool(note.model) else pool
        require_model(caller, model)
        if pool not in self._tools.stores.served:
            # It would never run.
            raise ModelNotFoundError(model, [name for name in self._tools.models() if may_use(caller, name)])
        header = api.JobHeader(model=model, idempotency_key=asked.key)
        header.run_within.CopyFrom(duration_to_wire(min(asked.window_s, settings.run_within_s)))
        check_header(header, settings)
        job = FileJob(
            header=stored_header(header, caller),
            note=BatchNote(asked.endpoint, asked.completion_window, asked.metadata, errors).pack(),
            key=asked.key,
            digest=asked.digest(),
            run_within_ms=round(1000 * min(asked.window_s, settings.run_within_s)),
            ttl_ms=round(1000 * (asked.keep_s or settings.ttl_s)),
            failed=bool(errors),
        )
        if known is not None:
            raise JobExistsError(asked.key, known.job_id)
        job_id = id_on(file.job_id)
        try:
            record = await store.begin(job_id, file, job)
        except JobNotFoundError:
            raise FileUnknownError(asked.file_id, "input_file_id") from None
        except QueueUnavailableError:
            # It may have begun all the same. Its client, who sends it again, finds it by its key, or would pay for two.
            if not asked.key:
                self._owner.spawn_unless_closed(drop(store, job_id, begun=True), "drop")
            raise
        if record.digest != job.digest:
            raise JobExistsError(asked.key, record.job_id)
        self._tools.nudge(pool)
        return batch_object(record)

    async def _known(self, asked: AskedBatch, caller: Caller) -> JobRecord | None:
        """Return what an earlier call with the same key began."""
        which = FileId.parse(asked.file_id) if asked.key else None
        if which is None:
            return None
        return await self._tools.stores.named(caller.tenant, asked.key, pool_of(which.job_id))

    async def describe(self, batch: str, caller: Caller) -> dict[str, Any]:
        """Return a batch.

        Raises:
            BatchUnknownError: the tenant has no such batch.
        """
        return batch_object((await self._find(batch, caller))[1])

    async def cancel(self, batch: str, caller: Caller) -> dict[str, Any]:
        """End a batch and return it. One that has ended stays as it is.

        Raises:
            BatchUnknownError: the tenant has no such batch.
        """
        store, record = await self._find(batch, caller)
        await store.cancel(record.job_id)
        return await self.describe(batch, caller)

    async def page(self, caller: Caller, after: str, limit: int) -> tuple[list[dict[str, Any]], bool]:
        """Return the newest batches, or those after one of them, and whether there are more. After one that was deleted
        meanwhile the list begins anew.

        Raises:
            BodyError: `after` can't be a batch here.
        """
        before = None
        if after:
            try:
                record = (await self._find(after, caller))[1]
                before = JobCursor(record.created_ms, record.job_id)
            except BatchUnknownError:
                if not is_made(job_of(after)):
                    raise BodyError("after", f"must be a batch of this list, got {shown(after)}") from None
        found: list[JobRecord] = []
        for store in await self._tools.stores.every():
            mine = []
            async for record in batches_of(store, caller.tenant, before, limit + 1):
                mine.append(record)
                if len(mine) > limit:
                    break
            found += mine
        newest = heapq.nlargest(limit + 1, found, key=lambda record: (record.created_ms, record.job_id))
        return [batch_object(record) for record in newest[:limit]], len(newest) > limit

    async def _find(self, batch: str, caller: Caller) -> tuple[JobStore, JobRecord]:
        job_id = job_of(batch)
        store = await self._tools.stores.find(pool_of(job_id)) if job_id else None
        record = await store.get(job_id) if store is not None else None
        if store is None or record is None or record.tenant != caller.tenant:
            raise BatchUnknownError(batch)
        return store, record


def _problems(note: FileNote, endpoint: str) -> tuple[LineError, ...]:
    other = [
        LineError(
            line, "invalid_url", f"line {line}: url: must be {endpoint} as the batch's endpoint, got {url}", "url"
        )
        for url, line in note.urls.items()
        if url != endpoint
    ]
    return (*other, *note.errors)
