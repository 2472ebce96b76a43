"""Files of a tenant: uploaded ones, and those of results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from cluster.errors import FileUnknownError, InvalidRequestError
from cluster.jobs.contract import JobCursor, JobRecord, JobStore
from cluster.jobs.ids import file_of, is_made, pool_of
from penstock.values.objects import BodyError, shown
from router.http.files.content import ResultSizes, results, uploaded
from router.http.files.ids import FileId
from router.http.files.notes import FileNote
from router.http.files.objects import file_object, made_results, results_object, results_of
from router.identity import Caller
from router.jobs.tools import JobTools

_PAGE = 500
"""Batches that are read at once."""


class FileLibrary:
    """Files of all tenants, whichever router took them."""

    def __init__(self, tools: JobTools) -> None:
        self._stores = tools.stores
        self._sizes = ResultSizes()

    async def describe(self, file_id: str, caller: Caller) -> dict[str, Any]:
        """Return a file.

        Raises:
            FileUnknownError: the tenant has no such file.
        """
        which, store, record = await self._find(file_id, caller)
        return await self._object(which, store, record)

    async def content(self, file_id: str, caller: Caller) -> tuple[AsyncIterator[bytes], int | None]:
        """Return a file's content, and its size in bytes where that is certain.

        Raises:
            FileUnknownError: the tenant has no such file.
        """
        which, store, record = await self._find(file_id, caller)
        if which.results:
            return results(store, record, which.results), None
        return uploaded(store, record), FileNote.read(record.note).size

    async def delete(self, file_id: str, caller: Caller) -> None:
        """Delete a file. An uploaded one that a batch reads goes when the batch has ended.

        Raises:
            FileUnknownError: the tenant has no such file.
        """
        which, store, record = await self._find(file_id, caller)
        if not which.results:
            await store.delete(record.job_id)
            return
        dropped = {*filter(None, record.dropped.split(",")), which.results}
        left = set(made_results(record)) - dropped
        await store.discard(record.job_id, ",".join(sorted(dropped)), remove=not left)

    async def input(self, file_id: str, caller: Caller) -> tuple[JobStore, JobRecord]:
        """Return an uploaded file.

        Raises:
            FileUnknownError: the tenant has no such file.
            InvalidRequestError: it is a file of results.
        """
        which, store, record = await self._find(file_id, caller)
        if which.results:
            raise InvalidRequestError.of("input_file_id", "must be a file with the purpose batch, got batch_output")
        return store, record

    async def page(
        self, caller: Caller, purpose: str | None, limit: int, *, after: str = "", oldest_first: bool = False
    ) -> tuple[list[dict[str, Any]], bool]:
        """Return the first files of a tenant with a purpose, or those after one of its files, and whether there are
        more. None is every purpose.

        Raises:
            BodyError: `after` can't be a file here.
        """
        place = await self._place(after, caller) if after else None
        found = await self._every(caller, purpose)
        if oldest_first:
            found.reverse()
        keys = ((at, each["id"]) for at, each in found)
        left = [
            each
            for key, (_, each) in zip(keys, found, strict=True)
            if place is None or (key > place if oldest_first else key < place)
        ]
        return left[:limit], len(left) > limit

    async def _place(self, file_id: str, caller: Caller) -> tuple[int, str] | None:
        """Return a file's place in the list, also of one that was deleted. None where nothing of it is left, as after
        a client has deleted a whole page: then the list begins anew, so that it leaves out nothing.
        """
        which = FileId.parse(file_id)
        store = await self._stores.find(pool_of(which.job_id)) if which is not None else None
        if which is None or store is None or not is_made(which.job_id):
            raise BodyError("after", f"must be a file of this list, got {shown(file_id)}")
        record = await store.get(which.job_id)
        if record is None or record.tenant != caller.tenant:
            return None
        return (record.ended_ms if which.results else record.created_ms), file_id

    async def _every(self, caller: Caller, purpose: str | None) -> list[tuple[int, dict[str, Any]]]:
        """Return all files of a tenant with a purpose, the newest first, each with its time."""
        # Answers have whole seconds, in which several files may come.
        found: list[tuple[int, dict[str, Any]]] = []
        for store in await self._stores.every():
            if purpose in (None, "batch"):
                records = await store.list_files(caller.tenant)
                found += [(record.created_ms, file_object(record)) for record in records if record.kept]
            if purpose in (None, "batch_output"):
                async for record in batches_of(store, caller.tenant):
                    names = results_of(record)
                    objects = await asyncio.gather(
                        *(self._object(FileId(record.job_id, name), store, record) for name in names)
                    )
                    found += [(record.ended_ms, each) for each in objects]
        found.sort(key=lambda each: (each[0], each[1]["id"]), reverse=True)
        return found

    async def _object(self, which: FileId, store: JobStore, record: JobRecord) -> dict[str, Any]:
        if not which.results:
            return file_object(record)
        return results_object(record, which.results, await self._sizes.of(store, record, which.results))

    async def _find(self, file_id: str, caller: Caller) -> tuple[FileId, JobStore, JobRecord]:
        which = FileId.parse(file_id)
        store = await self._stores.find(pool_of(which.job_id)) if which is not None else None
        record = await store.get(which.job_id) if which is not None and store is not None else None
        if which is None or store is None or record is None or record.tenant != caller.tenant:
            raise FileUnknownError(file_id)
        if not (which.results in results_of(record) if which.results else record.kept):
            raise FileUnknownError(file_id)
        return which, store, record


async def batches_of(
    store: JobStore, tenant: str, before: JobCursor | None = None, page: int = _PAGE
) -> AsyncIterator[JobRecord]:
    """Yield a tenant's batches in a store, the newest first, without other jobs."""
    while True:
        records = await store.list_jobs(tenant, before, page)
        for record in records:
            if file_of(record.job_id):
                yield record
        if len(records) < page:
            return
        before = JobCursor(records[-1].created_ms, records[-1].job_id)
