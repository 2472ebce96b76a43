"""A key of a job is gone: Redis evicted it, or somebody deleted it. The job ends and says so, or nothing is missed."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import JobLeaseLostError, JobNotFoundError
from cluster.jobs.contract import ItemResult, JobLimits, JobRecord, JobState
from tests.cluster.jobs.conftest import Backend
from tests.cluster.jobs.test_store import HOUR_MS, claimed, upload

RESULT = ItemResult(b"result")
TORN = [("items", "bodies"), ("sizes", "sizes of blocks"), ("done", "list of finished items"), ("results", "results")]


async def fed(backend: Backend) -> tuple[Any, Any]:
    """Return a store, and the claim of a job of three items that has one result."""
    store = backend.store()
    await upload(store, "j", key="mine")
    claim = await claimed(store)
    assert await store.store(claim, 0, RESULT)
    return store, claim


async def record_of(store: Any) -> JobRecord:
    record: JobRecord = await store.get("j")
    return record


@pytest.mark.parametrize(("key", "part"), TORN)
@pytest.mark.parametrize("how", ["renew", "store"])
async def test_a_job_that_lacks_a_part_ends_while_it_is_fed(backend: Backend, key: str, part: str, how: str) -> None:
    store, claim = await fed(backend)
    backend.lose(key)

    with pytest.raises(JobLeaseLostError):
        await (store.renew(claim) if how == "renew" else store.store(claim, 1, RESULT))

    record = await record_of(store)
    assert (JobState.FAILED, part, 1, "") == (record.state, record.lost, record.results, record.holder)
    assert ([] if key == "results" else [b"result"]) == await store.results("j", 0, 10)
    assert await store.claim("B", takeover=True) is None
    backend.clock.advance(store.limits.ttl_ms / 1000 + 1)
    assert 1 == await store.sweep()
    assert set() == backend.keys()


@pytest.mark.parametrize(("key", "part"), TORN)
@pytest.mark.parametrize("how", ["claim", "sweep"])
async def test_a_job_that_lacks_a_part_ends_while_nobody_feeds_it(
    backend: Backend, key: str, part: str, how: str
) -> None:
    store, claim = await fed(backend)
    await store.release(claim)
    await upload(store, "whole")
    backend.lose(key)

    if how == "claim":
        assert "whole" == (await claimed(store)).record.job_id
    else:
        await store.sweep()

    record = await record_of(store)
    assert (JobState.FAILED, part) == (record.state, record.lost)


async def test_lost_counts_of_failures_begin_anew(backend: Backend) -> None:
    store, claim = await fed(backend)
    assert 1 == await store.count_failure(claim, 1, "a")
    backend.lose("failures")

    assert 1 == await store.count_failure(claim, 1, "b")
    assert JobState.RUNNING is (await store.renew(claim)).state


async def test_results_of_a_job_that_ended_are_gone_and_nothing_else(backend: Backend) -> None:
    store, claim = await fed(backend)
    for item in (1, 2):
        await store.store(claim, item, RESULT)
    backend.lose("results")

    await store.sweep()

    assert [] == await store.results("j", 0, 10)
    assert (JobState.SUCCEEDED, 3) == ((await record_of(store)).state, (await record_of(store)).results)


async def test_a_job_without_a_record_is_not_there_and_leaves_nothing_behind(backend: Backend) -> None:
    store, claim = await fed(backend)
    await upload(store, "other")
    backend.lose("record")

    with pytest.raises(JobLeaseLostError):
        await store.renew(claim)
    with pytest.raises(JobLeaseLostError):
        await store.store(claim, 1, RESULT)
    await store.release(claim)
    assert await store.get("j") is None
    assert await store.find("acme", "mine") is None
    assert ["other"] == [job.job_id for job in await store.list_jobs("acme", None, 10)]
    assert "other" == (await claimed(store)).record.job_id
    await store.cancel("j")
    await store.sweep()

    await store.delete("other")
    # The client's key points to a job that is gone until the next job takes it.
    assert 1 == len(backend.keys())
    assert "j2" == (await upload(store, "j2", key="mine")).job_id


async def test_what_lost_records_counted_is_given_back(backend: Backend) -> None:
    store = backend.store(JobLimits(tenant_jobs=2, tenant_items=6))
    for job_id in ("j", "j2"):
        await upload(store, job_id)
    backend.lose("record")
    await store.sweep()

    await upload(store, "j3")


async def test_a_key_whose_job_is_gone_names_the_next_one(backend: Backend) -> None:
    store, _claim = await fed(backend)
    backend.lose("record")

    assert "j2" == (await upload(store, "j2", key="mine")).job_id
    assert "j2" == (await store.find("acme", "mine")).job_id


@pytest.mark.parametrize("key", ["items", "sizes", "record"])
async def test_an_upload_that_lacks_a_part_is_refused(backend: Backend, key: str) -> None:
    store = backend.store()
    await store.create("j", "acme", b"header")
    await store.append("j", 0, [b"0"])
    backend.lose(key)
    if key != "record":
        await store.append("j", 1, [b"1"])

    with pytest.raises(JobNotFoundError):
        await store.seal("j", "", "", HOUR_MS)
    await store.delete("j")
    assert set() == backend.keys()


@pytest.mark.parametrize("key", ["open", "due", "index", "names", "usage"])
async def test_a_key_of_all_jobs_comes_back(backend: Backend, key: str) -> None:
    store = backend.store()
    records = [await upload(store, f"j{number:02}", key=f"key-{number}") for number in range(30)]
    backend.lose(key)

    for _ in range(6):
        await store.sweep()

    assert records == (await store.list_jobs("acme", None, 100))[::-1]
    for record in records:
        assert record == await store.find("acme", record.key)
    claim = await claimed(store)
    assert await store.store(claim, 0, RESULT)
    await store.release(claim)
    for _ in range(2):
        # They expire, and are deleted.
        backend.clock.advance(store.limits.ttl_ms / 1000 + 1)
        assert 30 == await store.sweep()
    assert set() == backend.keys()


async def test_a_running_job_without_a_place_among_the_open_ones_goes_to_another_feeder(backend: Backend) -> None:
    store, _claim = await fed(backend)
    backend.lose("open")
    await store.sweep()
    assert await store.claim("B", takeover=True) is None

    backend.clock.advance(store.limits.lease_ms / 1000 + 1)
    store = backend.store()
    assert "j" == (await claimed(store, "B", takeover=True)).record.job_id
