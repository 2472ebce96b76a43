"""Files in the job store, and jobs on their items."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import JobLimitError, JobNotFoundError
from cluster.jobs.contract import FileJob, ItemResult, JobLimits, JobRecord, JobState
from cluster.jobs.ids import file_of, id_on, new_id, pool_of
from tests.cluster.jobs.conftest import POOL, Backend
from tests.cluster.jobs.test_store import HOUR_MS, claimed, upload

FILE = f"{POOL}.1"
JOB = FileJob(b"header", b"job's note", "", "digest", HOUR_MS, 2 * HOUR_MS)


async def kept(store: Any, file_id: str = FILE, tenant: str = "acme", items: int = 3) -> JobRecord:
    """Store a file of items b"0", b"1", ... in blocks of two."""
    await store.create(file_id, tenant, b"")
    for at in range(0, items, 2):
        await store.append(file_id, at, [b"%d" % n for n in range(at, min(at + 2, items))])
    record: JobRecord = await store.keep(file_id, b"header", b"note", HOUR_MS)
    return record


def test_an_id_tells_its_pool_and_its_file() -> None:
    file_id = new_id("a-b.c")
    job_id = id_on(file_id)
    assert ("a-b.c", "a-b.c") == (pool_of(file_id), pool_of(job_id))
    assert ("", file_id) == (file_of(file_id), file_of(job_id))


async def test_a_file_is_listed_and_is_no_job(backend: Backend) -> None:
    store = backend.store()
    file = await kept(store)
    assert (True, 3, 2, b"note") == (file.kept, file.items, file.blocks, file.note)
    assert backend.clock.wall_ms() + HOUR_MS == file.due_ms
    assert [file] == await store.list_files("acme")
    assert [] == await store.list_files("other") == await store.list_jobs("acme", None, 9)
    assert await store.claim("A", takeover=True) is None
    for late in (store.append(FILE, 3, [b"3"]), store.seal(FILE, "", "", HOUR_MS), store.keep(FILE, b"", b"", 1)):
        with pytest.raises(JobNotFoundError):
            await late
    # It goes when it is due, however silent.
    backend.clock.advance(HOUR_MS / 1000 - 1)
    await store.sweep()
    assert await store.get(FILE) == file
    backend.clock.advance(2)
    await store.sweep()
    assert set() == backend.keys()


async def test_jobs_on_a_file_read_its_items_and_leave_them(backend: Backend) -> None:
    store = backend.store()
    file = await kept(store)
    for number in range(2):
        job_id = id_on(FILE)
        record = await store.begin(job_id, file, JOB)
        assert (JobState.QUEUED, 3, b"job's note") == (record.state, record.items, record.note)
        claim = await claimed(store)
        assert [b"0", b"1"] == await store.block(job_id, 0)
        assert (2, 1) == tuple((await store.backlog(job_id)).sizes)
        for item in range(3):
            assert await store.store(claim, item, ItemResult(b"result", failed=item == 0, line_bytes=10 + item))
        ended = await store.get(job_id)
        assert (JobState.SUCCEEDED, 23, 10) == (ended.state, ended.output_bytes, ended.error_bytes)
        assert ended.due_ms == ended.ended_ms + 2 * HOUR_MS
        assert number + 1 == len(await store.list_jobs("acme", None, 9))
        assert [b"2"] == await store.block(FILE, 1)


@pytest.mark.parametrize("how", ["delete", "expire"])
async def test_a_file_that_a_job_reads_is_hidden_and_goes_after_it(backend: Backend, how: str) -> None:
    store = backend.store(JobLimits(lease_ms=10 * HOUR_MS))
    file = await kept(store)
    job_id = id_on(FILE)
    await store.begin(job_id, file, FileJob(b"", b"", "", "", 9 * HOUR_MS, HOUR_MS))
    claim = await claimed(store)
    if how == "delete":
        await store.delete(FILE)
    else:
        backend.clock.advance(HOUR_MS / 1000 + 1)
        await store.sweep()

    assert not (await store.get(FILE)).kept
    assert [] == await store.list_files("acme")
    assert [b"0", b"1"] == await store.block(job_id, 0)
    backend.clock.advance(61)
    await store.sweep()
    assert await store.get(FILE) is not None
    for item in range(3):
        await store.store(claim, item, ItemResult(b"result"))
    backend.clock.advance(61)
    await store.sweep()
    assert await store.get(FILE) is None
    assert JobState.SUCCEEDED is (await store.get(job_id)).state
    await store.delete(job_id)
    assert set() == backend.keys()


@pytest.mark.parametrize("how", ["cancel", "delete", "expire"])
async def test_a_job_on_a_file_ends_without_it_in_every_way(backend: Backend, how: str) -> None:
    store = backend.store()
    file = await kept(store)
    job_id = id_on(FILE)
    await store.begin(job_id, file, FileJob(b"", b"", "", "", HOUR_MS // 2, HOUR_MS))
    if how == "expire":
        backend.clock.advance(HOUR_MS / 2000 + 1)
        await store.sweep()
    else:
        await (store.cancel(job_id) if how == "cancel" else store.delete(job_id))
    await store.delete(FILE)
    if how != "delete":
        # What did not run is named by the file alone.
        backend.clock.advance(61)
        await store.sweep()
        assert [b"0", b"1"] == await store.block(FILE, 0)
        assert [] == await store.list_files("acme")
        await store.delete(job_id)
        backend.clock.advance(61)
        await store.sweep()
    assert set() == backend.keys()


async def test_a_file_goes_with_the_results_that_need_it(backend: Backend) -> None:
    store = backend.store()
    file = await kept(store)
    first, second = id_on(FILE), id_on(FILE)
    for job_id in (first, second):
        await store.begin(job_id, file, JOB)
        await store.cancel(job_id)
    await store.delete(FILE)
    await store.discard(first, "errors", remove=True)
    backend.clock.advance(61)
    await store.sweep()
    assert await store.get(FILE) is not None
    # The other ones are due.
    backend.clock.advance(2 * HOUR_MS / 1000)
    await store.sweep()
    backend.clock.advance(61)
    await store.sweep()
    assert set() == backend.keys()


async def test_a_job_that_failed_before_it_began_is_kept_and_never_run(backend: Backend) -> None:
    store = backend.store()
    file = await kept(store, items=0)
    job_id = id_on(FILE)
    record = await store.begin(job_id, file, FileJob(b"", b"why", "", "", 1, HOUR_MS, failed=True))
    assert (JobState.FAILED, b"why", record.created_ms) == (record.state, record.note, record.ended_ms)
    assert await store.claim("A", takeover=True) is None
    backend.clock.advance(HOUR_MS / 1000 + 1)
    await store.sweep()
    assert set() == backend.keys()


async def test_a_key_names_one_job_on_a_file(backend: Backend) -> None:
    store = backend.store()
    file = await kept(store)
    job = FileJob(b"", b"", "mine", "digest", HOUR_MS, HOUR_MS)
    first = await store.begin(id_on(FILE), file, job)
    assert first == await store.begin(id_on(FILE), file, job)
    assert first == await store.find("acme", "mine")


async def test_files_and_their_jobs_count_against_the_limits(backend: Backend) -> None:
    store = backend.store(JobLimits(tenant_jobs=2, tenant_items=6))
    file = await kept(store)
    await store.begin(id_on(FILE), file, JOB)
    with pytest.raises(JobLimitError, match="tenant_jobs = 2"):
        await store.begin(id_on(FILE), file, JOB)
    wide = backend.store(JobLimits(tenant_items=8))
    with pytest.raises(JobLimitError, match="tenant_items = 8"):
        await wide.begin(id_on(FILE), file, JOB)
    with pytest.raises(JobNotFoundError):
        await wide.begin(
            id_on(f"{POOL}.2"), JobRecord(f"{POOL}.2", "acme", JobState.UPLOADING, b"", items=3, blocks=2), JOB
        )


async def test_results_of_a_job_that_ended_can_be_deleted(backend: Backend) -> None:
    store = backend.store()
    file = await kept(store, items=1)
    job_id = id_on(FILE)
    await store.begin(job_id, file, JOB)
    claim = await claimed(store)
    await store.discard(job_id, "output", remove=True)
    assert "" == (await store.get(job_id)).dropped
    await store.store(claim, 0, ItemResult(b"result" * 100))
    await store.discard(job_id, "output", remove=False)
    assert [b"result" * 100] == await store.results(job_id, 0, 9)
    await store.discard(job_id, "output,errors", remove=True)
    assert [] == await store.results(job_id, 0, 9)
    assert ("output,errors", 1) == ((await store.get(job_id)).dropped, (await store.get(job_id)).results)
    await store.delete(job_id)
    await store.delete(FILE)
    assert set() == backend.keys()


async def test_what_lists_files_comes_back_after_a_loss(backend: Backend) -> None:
    store = backend.store()
    file = await kept(store)
    await upload(store, "j")
    for shared in ("files", "due", "usage"):
        backend.lose(shared)
        await store.sweep()
        assert [file] == await store.list_files("acme")
    backend.lose("record", FILE)
    for _turn_of_each in range(3):
        await store.sweep()
    assert [] == await store.list_files("acme")
    await store.delete("j")
    assert set() == backend.keys()


async def test_a_job_whose_file_is_lost_fails_and_says_so(backend: Backend) -> None:
    store = backend.store()
    file = await kept(store)
    job_id = id_on(FILE)
    await store.begin(job_id, file, JOB)
    backend.lose("items", FILE)
    assert await store.claim("A", takeover=True) is None
    assert (JobState.FAILED, "bodies") == ((await store.get(job_id)).state, (await store.get(job_id)).lost)
