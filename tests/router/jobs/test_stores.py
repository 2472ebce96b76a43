"""Jobs of pools that were renamed or taken out of the settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster.clock import ManualClock
from cluster.errors import JobNotFoundError, ModelNotFoundError, QueueUnavailableError
from cluster.jobs.contract import JobLimits
from cluster.jobs.pools import RedisJobPools
from cluster.jobs.redis.store import RedisJobStore
from cluster.redis.in_process.server import InProcessRedis
from penstock.client import AsyncClient, JobItem, Sampling
from penstock.v1 import jobs_pb2 as api
from router.build import build_router
from router.identity import Caller
from router.jobs import JobServicer, JobStores
from tests.support.job_servicer import job_servicer
from tests.support.stack import SECRET, running_stack
from tests.support.waiting import until

ME = Caller("me")
LIMITS = JobLimits()


class Site:
    """What routers with different settings share."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.redis = InProcessRedis(self.clock)

    def store(self, pool: str) -> RedisJobStore:
        return RedisJobStore(self.redis, pool, LIMITS, clock=self.clock)

    def router(self, *pools: str) -> tuple[JobStores, JobServicer]:
        stores = JobStores(pools, self.store, RedisJobPools(self.redis), sweep_s=0.01)
        return stores, job_servicer(stores)

    async def submit(self, job_id: str) -> None:
        store = self.store(job_id.rpartition(".")[0])
        await store.create(job_id, "me", b"")
        await store.append(job_id, 0, [b"x"])
        await store.seal(job_id, "", "", 60_000)


@pytest.fixture
async def site() -> Site:
    """One where the pool `old` had a job before it was renamed."""
    site = Site()
    before, _servicer = site.router("old")
    await before.start()
    assert {"old"} == await RedisJobPools(site.redis).names()
    await site.submit("old.1")
    await before.close()
    return site


async def test_they_can_be_read_and_deleted(site: Site) -> None:
    stores, servicer = site.router("new")
    await site.submit("new.1")

    listed = await servicer.ListJobs(api.ListJobsRequest(), None, ME)
    assert {"old.1", "new.1"} == {job.job_id for job in listed.jobs}
    assert "old.1" == (await servicer.GetJob(api.GetJobRequest(job_id="old.1"), None, ME)).job.job_id
    cancelled = await servicer.CancelJob(api.CancelJobRequest(job_id="old.1"), None, ME)
    assert api.JOB_STATE_CANCELLED == cancelled.job.state
    await servicer.DeleteJob(api.DeleteJobRequest(job_id="old.1"), None, ME)
    for job_id in ("old.1", "never.1"):
        with pytest.raises(JobNotFoundError):
            await servicer.GetJob(api.GetJobRequest(job_id=job_id), None, ME)
    await stores.close()


async def test_a_job_of_one_is_found_without_a_list_before(site: Site) -> None:
    stores, servicer = site.router("new")
    assert "old.1" == (await servicer.GetJob(api.GetJobRequest(job_id="old.1"), None, ME)).job.job_id
    await stores.close()


async def test_they_take_no_jobs(site: Site) -> None:
    stores, servicer = site.router("new")
    await stores.every()

    async def upload() -> AsyncIterator[api.SubmitJobRequest]:
        yield api.SubmitJobRequest(header=api.JobHeader(model="old"))

    with pytest.raises(ModelNotFoundError, match="new"):
        await servicer.SubmitJob(upload(), None, ME)
    assert {"new"} == stores.served.keys()
    await servicer.close()
    await stores.close()


async def test_open_ones_expire_and_what_is_due_goes(site: Site) -> None:
    stores, servicer = site.router("new")
    await stores.start()
    site.clock.advance(61)

    async def expired() -> bool:
        job = (await servicer.GetJob(api.GetJobRequest(job_id="old.1"), None, ME)).job
        return bool(job.state == api.JOB_STATE_EXPIRED)

    await until(expired)
    site.clock.advance(LIMITS.ttl_ms / 1000 + 1)
    await until(lambda: not [key for key in site.redis.execute("KEYS", "*") if b"{old}" in key])
    await stores.close()


async def test_a_pool_that_is_served_is_found_without_the_list(site: Site) -> None:
    class Away(RedisJobPools):
        async def names(self) -> frozenset[str]:
            raise QueueUnavailableError("no answer")

    stores = JobStores(["new"], site.store, Away(site.redis))
    assert stores.served["new"] is await stores.find("new")
    with pytest.raises(QueueUnavailableError):
        await stores.find("old")
    with pytest.raises(QueueUnavailableError):
        await stores.every()
    await stores.close()


async def test_after_a_pool_was_renamed_its_results_are_there(tmp_path: Path) -> None:
    async with running_stack(tmp_path, sim={"time_scale": 0.0}) as stack:
        async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as client:
            job = await client.submit_job("demo", [JobItem("q", "Hi", Sampling(max_tokens=3))])
            before = [result async for update in client.watch_job(job.job_id) for result in update.results]
        settings = stack.settings.model_copy(update={"pools": {"chat": stack.settings.pools["demo"]}})
        renamed = build_router(settings, SECRET, stack.factory(), port=0)
        await renamed.start()
        try:
            async with AsyncClient(f"127.0.0.1:{renamed.port}") as client:
                assert [job.job_id] == [each.job_id for each in (await client.list_jobs()).jobs]
                after = [result async for update in client.watch_job(job.job_id) for result in update.results]
        finally:
            await renamed.stop(drain_s=1.0)
    assert before == after != []
