"""What spans pools and attempts: one list over all pools, and a submission whose answer was lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.clock import ManualClock
from cluster.errors import InvalidRequestError, JobExistsError, QueueUnavailableError, UnavailableError
from cluster.jobs.contract import ItemResult, JobRecord
from cluster.jobs.pools import RedisJobPools
from cluster.jobs.redis.keys import shared_key
from cluster.jobs.redis.store import RedisJobStore
from cluster.redis.in_process.server import InProcessRedis
from penstock.client import AsyncClient, Client, JobItem, RetryPolicy, Sampling
from penstock.v1 import jobs_pb2 as api
from router.identity import Caller
from router.jobs import JobStores
from router.routing import Aliases
from tests.support.job_servicer import job_servicer
from tests.support.stack import request, running_stack
from tests.support.waiting import until

ME = Caller("me")


def opened(stores: Mapping[str, RedisJobStore]) -> JobStores:
    return JobStores(stores, stores.__getitem__, RedisJobPools(InProcessRedis()))


async def test_a_list_goes_over_all_pools_newest_first() -> None:
    clock = ManualClock()
    stores = {name: RedisJobStore(InProcessRedis(clock), name, clock=clock) for name in ("a", "b.c")}
    servicer = job_servicer(opened(stores))
    made = []
    for number in range(7):
        pool = ("a", "b.c")[number % 3 == 0]
        job_id = f"{pool}.{number}"
        await stores[pool].create(job_id, "me", api.JobHeader(model=pool).SerializeToString())
        await stores[pool].append(job_id, 0, [b"x"])
        await stores[pool].seal(job_id, "", "", 10**6)
        made.append(job_id)
        # Some are created in the same millisecond.
        clock.advance(0.001 * (number % 2))
    await stores["a"].create("a.uploading", "me", b"")

    listed: list[str] = []
    token = ""
    for _ in range(4):
        page = await servicer.ListJobs(api.ListJobsRequest(page_size=2, page_token=token), None, ME)
        listed.extend(job.job_id for job in page.jobs)
        token = page.next_page_token
    assert ("", sorted(made)) == (token, sorted(listed))
    records = {job_id: await stores[job_id.rpartition(".")[0]].get(job_id) for job_id in made}
    order = {job_id: (record.created_ms, job_id) for job_id, record in records.items() if record is not None}
    assert sorted(made, key=order.__getitem__, reverse=True) == listed
    with pytest.raises(InvalidRequestError, match="page_token"):
        await servicer.ListJobs(api.ListJobsRequest(page_token="bm9wZQ=="), None, ME)


async def test_a_submission_whose_answer_was_lost_is_stored_once(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=1, sim={"time_scale": 0.0}) as stack:
        servicer: Any = stack.routers[0]._jobs
        nudge, lost = servicer._nudge, []

        def fail_once(pool: str) -> None:
            # Called once the job is stored, before the answer leaves.
            servicer._nudge = nudge
            lost.append(pool)
            raise UnavailableError("the answer is lost", 0.0)

        servicer._nudge = fail_once
        async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}", retry=RetryPolicy(base_delay=0.0)) as client:
            sent: list[int] = []
            items = [JobItem(f"q{n}", "Hi", Sampling(max_tokens=1)) for n in range(600)]
            job = await client.submit_job("demo", items, on_sent=sent.append)
            assert ["demo"] == lost
            assert [256, 512, 600, 256, 512, 600] == sent
            assert [job.job_id] == [listed.job_id for listed in (await client.list_jobs()).jobs]
            assert job.idempotency_key.startswith("auto-")


async def test_what_hears_of_an_upload_may_fail(tmp_path: Path) -> None:
    """Its own error comes out, and no job is left."""

    def fail(_sent: int) -> None:
        raise ZeroDivisionError("of the caller")

    async with running_stack(tmp_path, routers=1) as stack:
        target = f"127.0.0.1:{stack.routers[0].port}"
        async with AsyncClient(target) as client:
            with pytest.raises(ZeroDivisionError, match="of the caller"):
                await client.submit_job("demo", [JobItem("q", "Hi")], on_sent=fail)
            with Client(target) as other, pytest.raises(ZeroDivisionError, match="of the caller"):
                await asyncio.to_thread(other.submit_job, "demo", [JobItem("q", "Hi")], on_sent=fail)
            assert () == (await client.list_jobs()).jobs


class SilentSeal(RedisJobStore):
    """Seals, and does not answer the first time."""

    silent = True

    async def seal(self, *args: Any) -> JobRecord:
        record = await super().seal(*args)
        if self.silent:
            self.silent = False
            raise QueueUnavailableError("no answer")
        return record


@pytest.mark.parametrize("key", ["k", ""])
async def test_a_job_whose_seal_was_not_answered_is_there_once_after_the_next_try(key: str) -> None:
    """Its client finds it by its key; without one it is dropped."""
    redis = InProcessRedis(ManualClock())
    stores = {"a": SilentSeal(redis, "a")}
    servicer = job_servicer(opened(stores))

    async def upload() -> AsyncIterator[api.SubmitJobRequest]:
        yield api.SubmitJobRequest(header=api.JobHeader(model="a", idempotency_key=key))
        yield api.SubmitJobRequest(items=api.JobItems(items=[api.JobItem(custom_id="1", request=request(model="a"))]))

    with pytest.raises(QueueUnavailableError):
        await servicer.SubmitJob(upload(), None, ME)
    reply = await servicer.SubmitJob(upload(), None, ME)
    assert bool(key) == reply.existed

    def here() -> list[str]:
        return [name.decode() for name in redis.execute("ZRANGE", shared_key("a", "due"), 0, -1)]

    await until(lambda: here() == [reply.job.job_id])
    await servicer.close()


class Away(RedisJobStore):
    """Takes an upload's beginning, and is away then."""

    async def append(self, *_: Any) -> None:
        raise QueueUnavailableError("away")

    async def delete(self, _job_id: str) -> None:
        raise QueueUnavailableError("away")


@pytest.mark.parametrize("closed", [False, True])
async def test_an_upload_that_an_outage_breaks_off_is_left_to_the_sweep(
    monkeypatch: pytest.MonkeyPatch, *, closed: bool
) -> None:
    """Its client hears so, also while its router ends."""
    monkeypatch.setattr("router.jobs.tools._INSIST_S", 0.0)
    servicer = job_servicer(opened({"a": Away(InProcessRedis(ManualClock()), "a")}))
    if closed:
        await servicer.close()
    with pytest.raises(QueueUnavailableError):
        await servicer.SubmitJob(upload_to("a"), None, ME)
    await until(lambda: not len(servicer._owner))
    await servicer.close()


class Moving(Aliases):
    """An alias whose main target changes."""

    def __init__(self) -> None:
        self.main = "a"

    def home(self, _name: str) -> str:
        return self.main


def upload_to(model: str, custom_id: str = "1") -> AsyncIterator[api.SubmitJobRequest]:
    async def parts() -> AsyncIterator[api.SubmitJobRequest]:
        yield api.SubmitJobRequest(header=api.JobHeader(model=model, idempotency_key="k"))
        item = api.JobItem(custom_id=custom_id, request=request(model=model))
        yield api.SubmitJobRequest(items=api.JobItems(items=[item]))

    return parts()


async def test_a_repeat_finds_its_job_in_the_pool_that_its_alias_had_before() -> None:
    redis, alias = InProcessRedis(ManualClock()), Moving()
    stores = opened({name: RedisJobStore(redis, name) for name in ("a", "b")})
    servicer = job_servicer(stores, alias)
    await stores.start()
    first = await servicer.SubmitJob(upload_to("chat"), None, ME)
    assert first.job.job_id.startswith("a.")
    alias.main = "b"
    again = await servicer.SubmitJob(upload_to("chat"), None, ME)
    assert again.existed
    assert again.job.job_id == first.job.job_id
    for other in (upload_to("chat", "2"), upload_to("b")):
        with pytest.raises(JobExistsError):
            await servicer.SubmitJob(other, None, ME)
    assert not (await servicer.SubmitJob(upload_to("b"), None, Caller("another"))).existed
    await servicer.close()
    await stores.close()


class Read(RedisJobStore):
    """Counts the results that it gives."""

    read = 0

    async def results(self, *args: Any) -> list[bytes]:
        found = await super().results(*args)
        self.read += len(found)
        return found


class Reader:
    """The context of a call whose client reads everything."""

    def __init__(self) -> None:
        self.results: list[api.JobResult] = []

    async def write(self, response: api.WatchJobResponse) -> None:
        self.results.extend(response.results)


@pytest.mark.parametrize(("size", "most"), [(1 << 20, 2), (300_000, 1.5), (10, 1.2)])
async def test_results_are_not_read_again_and_again_because_they_are_large(size: int, most: float) -> None:
    store = Read(InProcessRedis(ManualClock()), "a")
    await store.create("a.1", "me", api.JobHeader(model="a").SerializeToString())
    await store.append("a.1", 0, [b"x"] * 100)
    await store.seal("a.1", "", "", 10**6)
    claim = await store.claim("A", takeover=False)
    assert claim is not None
    for number in range(100):
        result = api.JobResult(index=number, custom_id="x" * size, execution_id=f"e{number}")
        await store.store(claim, number, ItemResult(result.SerializeToString()))
    servicer = job_servicer(opened({"a": store}))

    reader = Reader()
    await servicer.WatchJob(api.WatchJobRequest(job_id="a.1"), reader, ME)

    assert [(number, number) for number in range(100)] == [(each.index, each.offset) for each in reader.results]
    assert store.read <= most * 100
