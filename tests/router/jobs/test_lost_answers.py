"""Jobs whose store does its work and does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.errors import GenerationFailedError, QueueUnavailableError
from cluster.jobs.contract import JobClaim, JobState
from cluster.jobs.redis.store import RedisJobStore
from cluster.redis.in_process.server import InProcessRedis
from router.jobs.run import JobRun, RunTools
from router.jobs.upload import BLOCK_ITEMS
from tests.router.jobs.test_feeder import SETTINGS, Engine
from tests.router.jobs.test_feeder import submit as store_job
from tests.router.jobs.test_service import item, submit
from tests.support.stack import running_stack


@pytest.mark.parametrize("done", [False, True], ids=["lost", "unheard"])
@pytest.mark.parametrize("missed", [1, 2])
async def test_an_upload_goes_on_when_the_store_misses_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missed: int, *, done: bool
) -> None:
    async with running_stack(tmp_path, sim={"time_scale": 0.0}) as stack:
        store = stack.routers[0]._parts.jobs.stores.served["demo"]
        append, calls = store.append, 0

        async def flaky(*arguments: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == missed:
                if done:
                    await append(*arguments)
                raise QueueUnavailableError("no answer")
            await append(*arguments)

        monkeypatch.setattr(store, "append", flaky)
        items = 2 * BLOCK_ITEMS + 1
        job = await submit(stack, (item(number) for number in range(items)))
        assert items == job.items
        assert 4 == calls
        assert [job.job_id] == list(stack.stored_jobs())


class SilentCounts(RedisJobStore):
    """A client that hears no first answer to a failure that it tells."""

    told: dict[str, int]

    async def count_failure(self, claim: JobClaim, item: int, execution: str) -> int:
        found = await super().count_failure(claim, item, execution)
        self.told[execution] = self.told.get(execution, 0) + 1
        if self.told[execution] == 1:
            raise QueueUnavailableError("no answer")
        return found


async def test_a_failure_counts_once_although_its_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.jobs.verdict.FAILURE_WAIT_S", 0.0)
    store, engine = SilentCounts(InProcessRedis(), "demo"), Engine()
    store.told = {}
    await store_job(store, 1)
    engine.errors["0"] = [GenerationFailedError("r", 1) for _ in range(SETTINGS.max_attempts - 1)]

    async def sleep(_seconds: float) -> None:
        return

    claim = await store.claim("A", takeover=False)
    assert claim is not None
    await JobRun(claim, RunTools(store, engine, SETTINGS, lambda: 100, sleep=sleep)).run()

    record = await store.get("demo.1")
    assert record is not None
    assert (JobState.SUCCEEDED, 0) == (record.state, record.failed)
    assert {"0": SETTINGS.max_attempts} == engine.executions
    await store.close()
