"""Intake of a file: bytes come in as the client sends them, and go to the job store in blocks of lines."""

from __future__ import annotations

import asyncio
import time

from cluster.errors import (
    FileTooLargeError,
    InvalidRequestError,
    JobNotFoundError,
    PermissionDeniedError,
)
from cluster.jobs.contract import JobRecord, JobStore
from cluster.jobs.ids import new_id
from penstock.v1 import jobs_pb2 as api
from router.http.files.checks import LineChecks
from router.http.files.notes import FileNote
from router.http.files.splitter import LineSplitter
from router.identity import Caller, may_use
from router.jobs.tools import JobTools, append, drop, insist
from router.jobs.upload import BLOCK_BYTES, BLOCK_ITEMS

_TURN_S = 0.0005
"""Seconds for which lines are checked in one turn of the event loop, which has streams to serve. With four times as
many, chats waited three times as long during an upload."""


class FileIntake:
    """Intake of one file. `keep` or `drop` ends it."""

    def __init__(self, tools: JobTools, max_mb: int, caller: Caller) -> None:
        """`max_mb`: largest file, in MiB."""
        self._tools = tools
        self._max_mb = max_mb
        self._caller = caller
        self._lines = LineSplitter(tools.settings.max_item_bytes)
        self._checks = LineChecks(tools.models(), caller, tools.limits, lambda model: tools.task(tools.pool(model)))
        self._store: JobStore | None = None
        self._pool = ""
        self._file_id = ""
        self._size = 0
        self._items = 0
        self._stored = 0
        """Items that the store has."""
        self._block: list[bytes] = []
        self._block_bytes = 0
        self._ended = False
        """Whether the store may keep it."""
        self._turn_began = self._stored_at = time.monotonic()

    async def add(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            FileTooLargeError: the file is too large.
            InvalidRequestError: it is none of JSON lines, has too many or too long ones, or was silent for too long.
            PermissionDeniedError: the caller may not use its model.
            JobLimitError: the tenant or the store has too much.
        """
        self._size += len(data)
        if self._size > self._max_mb << 20:
            raise FileTooLargeError(self._max_mb)
        self._turn_began = time.monotonic()
        for number, line in self._lines.feed(data):
            await self._put(number, line)
        # A slow upload must not look like one that was left.
        if self._block and time.monotonic() - self._stored_at > self._tools.settings.upload_s / 4:
            await self._flush()

    async def keep(self, filename: str, keep_s: float) -> JobRecord:
        """End the file, keep it for so long, and return it.

        Raises:
            InvalidRequestError, PermissionDeniedError, JobLimitError: as in `add`.
        """
        for number, line in self._lines.end():
            await self._put(number, line)
        if self._items == 0:
            self._checks.check(1, b"")
        await self._flush()
        store = self._store or await self._open()
        checks = self._checks
        note = FileNote(filename, self._size, checks.model, checks.urls, tuple(checks.errors))
        header, packed = api.JobHeader(model=self._pool).SerializeToString(), note.pack()
        self._ended = True
        try:
            return await insist(lambda: store.keep(self._file_id, header, packed, round(keep_s * 1000)))
        except JobNotFoundError:
            record = await insist(lambda: store.get(self._file_id))
            if record is None or not record.kept:
                raise self._silent() from None
            # The call before it did its work, and only its answer was lost.
            return record

    async def drop(self) -> None:
        """Remove what was stored. Do nothing if that is nothing."""
        if self._store is not None:
            await drop(self._store, self._file_id, begun=self._ended)

    async def _put(self, number: int, line: bytes) -> None:
        most = self._tools.settings.max_job_items
        if self._items >= most:
            raise InvalidRequestError.of("file", f"must have at most {most:,} requests (jobs.max_job_items)")
        self._checks.check(number, line)
        self._items += 1
        if self._block and self._block_bytes + len(line) > BLOCK_BYTES:
            await self._flush()
        self._block.append(line)
        self._block_bytes += len(line)
        if len(self._block) == BLOCK_ITEMS:
            await self._flush()
        elif time.monotonic() - self._turn_began > _TURN_S:
            await asyncio.sleep(0)
            self._turn_began = time.monotonic()

    async def _flush(self) -> None:
        await self._judge()
        if not self._block:
            return
        await self._append(self._store or await self._open())
        self._stored += len(self._block)
        self._block, self._block_bytes = [], 0
        self._turn_began = self._stored_at = time.monotonic()

    async def _append(self, store: JobStore) -> None:
        try:
            await append(store, self._file_id, self._stored, self._block)
        except JobNotFoundError:
            raise self._silent() from None

    async def _open(self) -> JobStore:
        served = self._tools.stores.served
        if pool := self._tools.pool(self._checks.model):
            self._pool = pool
        elif pools := [name for name in sorted(served) if may_use(self._caller, name)]:
            # It can never be a batch, but it can be looked at and deleted.
            self._pool = pools[0]
        else:
            allowed = sorted(self._caller.models or ())
            raise PermissionDeniedError(self._caller.tenant, "model", self._checks.model, allowed)
        store, self._file_id = served[self._pool], new_id(self._pool)
        # First, so that a call that is cancelled now is dropped too.
        self._store = store
        await store.create(self._file_id, self._caller.tenant, b"")
        return store

    async def _judge(self) -> None:
        constraints, self._checks.constraints = self._checks.constraints, {}
        for constraint, (number, place) in constraints.items():
            if (pool := self._tools.pool(self._checks.model)) and (
                problem := await self._tools.constraint_problem(pool, constraint)
            ):
                self._checks.note(number, "invalid_request", problem.description, place)

    def _silent(self) -> InvalidRequestError:
        seconds = self._tools.settings.upload_s
        return InvalidRequestError.of("file", f"must come with pauses of at most {seconds:g} s (jobs.upload_s)")
