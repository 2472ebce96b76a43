"""Content of files, read block by block from the job store."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator

from cluster.jobs.contract import JobRecord, JobStore
from cluster.jobs.ids import file_of
from penstock.v1 import jobs_pb2 as api
from router.http.files.ids import ERRORS, OUTPUT
from router.http.files.objects import is_unfinished
from router.http.files.results import result_line, unfinished_line
from router.jobs.lines import name_of
from router.jobs.plan import is_done

_RESULTS = 32
"""Most results that are read at once."""
_READ_BYTES = 1 << 20
"""Bytes after which no more results are read at once. A single one may be larger."""
_LARGE = 32 << 10
"""Bytes of a result that take a good part of a millisecond to write as a line."""
_REMEMBERED = 1_024


class ContentLostError(Exception):
    """Error of a file that can't be read to its end, because it was deleted or Redis lost a part."""


async def uploaded(store: JobStore, file: JobRecord) -> AsyncIterator[bytes]:
    """Yield the content of an uploaded file.

    Raises:
        ContentLostError: it is gone.
    """
    for number in range(file.blocks):
        if not (lines := await store.block(file.job_id, number)):
            raise ContentLostError
        yield b"".join(lines)


async def results(store: JobStore, batch: JobRecord, name: str) -> AsyncIterator[bytes]:
    """Yield the lines of a batch's output, or of its errors. Lines that did not run are the last errors.

    Raises:
        ContentLostError: it is gone.
    """
    done = bytearray(batch.items // 8 + 1)
    failed = name == ERRORS
    offset, wanted = 0, 1
    while offset < batch.results:
        bodies = await store.results(batch.job_id, offset, min(wanted, batch.results - offset))
        if not bodies:
            raise ContentLostError
        offset += len(bodies)
        # As many as have room if all are as large as the largest of these.
        wanted = max(1, min(_RESULTS, _READ_BYTES // max(map(len, bodies))))
        found = [api.JobResult.FromString(body) for body in bodies]
        for result in found:
            done[result.index // 8] |= 0x80 >> result.index % 8
        chosen = [await _line(batch, each) for each in found if each.HasField("error") == failed]
        if chosen:
            yield b"".join(chosen)
    if failed and is_unfinished(batch):
        async for lines in _unfinished(store, batch, bytes(done)):
            yield lines


async def _line(batch: JobRecord, result: api.JobResult) -> bytes:
    # In a thread, because the caller's event loop has streams to serve.
    large = result.ByteSize() > _LARGE
    return await asyncio.to_thread(result_line, batch, result) if large else result_line(batch, result)


async def _unfinished(store: JobStore, batch: JobRecord, done: bytes) -> AsyncIterator[bytes]:
    file_id = file_of(batch.job_id)
    first = 0
    # Without the file, or a part that Redis lost, nobody knows the names of its lines.
    for number, size in enumerate((await store.backlog(file_id)).sizes):
        lines = await store.block(file_id, number)
        if not lines and not batch.lost:
            raise ContentLostError
        if left := b"".join(
            unfinished_line(batch, place, name_of(line))
            for place, line in enumerate(lines, first)
            if not is_done(done, place)
        ):
            yield left
        first += size


class ResultSizes:
    """Sizes of files of results. Only those that name lines which did not run must be read for it."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()

    async def of(self, store: JobStore, batch: JobRecord, name: str) -> int:
        """Return the bytes of a file of results.

        Raises:
            ContentLostError: it is gone.
        """
        if name == OUTPUT:
            return batch.output_bytes
        if not is_unfinished(batch):
            return batch.error_bytes
        if batch.job_id not in self._known:
            self._known[batch.job_id] = sum([len(lines) async for lines in results(store, batch, name)])
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return self._known[batch.job_id]
