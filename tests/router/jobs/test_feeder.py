"""The feeder on Redis in process: what is in flight, what is repeated, and who goes on after whom."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cluster.clock import ManualClock
from cluster.errors import (
    GenerationFailedError,
    InvalidRequestError,
    PenstockError,
    QueueFullError,
    QueueUnavailableError,
)
from cluster.jobs.contract import JobLimits, JobState
from cluster.jobs.redis.keys import JOB_KEYS, job_keys
from cluster.jobs.redis.store import RedisJobStore
from cluster.redis.in_process.server import InProcessRedis
from cluster.settings import JobsSettings
from penstock.models import RequestClass
from penstock.v1 import inference_pb2, types_pb2
from penstock.v1 import jobs_pb2 as api
from router.jobs.feeder import JobFeeder
from router.jobs.run import JobRun, RunTools
from tests.support.waiting import until

SETTINGS = JobsSettings(poll_s=0.02, lease_s=1.0, in_flight=4)


class Engine:
    """An `Execute` that the test controls."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.most = 0
        self.executions: Counter[str] = Counter()
        self.open = asyncio.Event()
        self.open.set()
        self.free_items = 0
        """Items below this index run also while `open` is not set."""
        self.errors: dict[str, list[Exception]] = {}

    async def __call__(self, tenant: str, request: inference_pb2.GenerateRequest) -> inference_pb2.GenerateResponse:
        assert ("acme", "demo", types_pb2.REQUEST_CLASS_BATCH) == (tenant, request.model, request.request_class)
        name = request.prompt.text
        self.executions[name] += 1
        self.running.add(name)
        self.most = max(self.most, len(self.running))
        try:
            await asyncio.sleep(0)
            if int(name) >= self.free_items:
                await self.open.wait()
            if self.errors.get(name):
                raise self.errors[name].pop(0)
        finally:
            self.running.discard(name)
        return inference_pb2.GenerateResponse(request_id=f"{name}.{self.executions[name]}")


class FlakyStore(RedisJobStore):
    """A client whose Redis can go away."""

    away = False
    sweeps = 0
    """Begun so far; each of a feeder's looks begins with one."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "sweep":
            self.sweeps += 1
        if name in ("store", "renew", "claim", "sweep", "backlog", "block") and super().__getattribute__("away"):

            async def fail(*_args: Any, **_options: Any) -> None:
                raise QueueUnavailableError("away")

            return fail
        return value


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def shared(clock: ManualClock) -> InProcessRedis:
    return InProcessRedis(clock)


def flaky(shared: InProcessRedis, **limits: int) -> FlakyStore:
    return FlakyStore(shared, "demo", JobLimits(**limits), clock=shared.clock)


def key_of(part: str) -> str:
    """Return a key of the job "demo.1"."""
    return job_keys("demo", "demo.1")[JOB_KEYS.index(part)]


@pytest.fixture
def store(shared: InProcessRedis) -> FlakyStore:
    return flaky(shared, lease_ms=1_000)


@pytest.fixture
async def engine() -> Engine:
    return Engine()


@pytest.fixture
async def feeders() -> AsyncIterator[list[JobFeeder]]:
    started: list[JobFeeder] = []
    yield started
    for feeder in started:
        await feeder.close()


async def submit(store: RedisJobStore, items: int, job_id: str = "demo.1") -> None:
    """Store a job whose prompts are "0", "1", ... in blocks of three."""
    await store.create(job_id, "acme", api.JobHeader(model="demo").SerializeToString())
    for at in range(0, items, 3):
        bodies = []
        for number in range(at, min(at + 3, items)):
            item = api.JobItem(custom_id=f"q{number}")
            item.request.prompt.text = f"{number}"
            bodies.append(item.SerializeToString())
        await store.append(job_id, at, bodies)
    await store.seal(job_id, "", "", 10**9)


async def results(store: RedisJobStore, job_id: str = "demo.1") -> list[api.JobResult]:
    """Read all results."""
    return [api.JobResult.FromString(body) for body in await store.results(job_id, 0, 1_000)]


async def state(store: RedisJobStore, job_id: str = "demo.1") -> JobState:
    record = await store.get(job_id)
    assert record is not None
    return record.state


def feeder_of(
    store: RedisJobStore,
    engine: Engine,
    name: str = "A",
    settings: JobsSettings = SETTINGS,
    capacity: Callable[[str], int] = lambda _pool: 100,
    **options: Any,
) -> JobFeeder:
    return JobFeeder(name, {"demo": store}, engine, settings, capacity, **options)


async def looked(store: FlakyStore) -> None:
    """Wait until the only feeder of this store has looked once more, from its beginning to its end."""
    before = store.sweeps
    await until(lambda: store.sweeps >= before + 2)


async def finished(store: RedisJobStore, job_id: str = "demo.1") -> None:
    async def ended() -> bool:
        return (await state(store, job_id)).ended

    await until(ended)


@pytest.mark.parametrize(("capacity", "most"), [(100, 4), (2, 2), (0, 1)])
async def test_so_many_items_are_in_flight_and_no_more(
    store: FlakyStore, engine: Engine, feeders: list[JobFeeder], capacity: int, most: int
) -> None:
    await submit(store, 20)
    feeders.append(feeder_of(store, engine, capacity=lambda _pool: capacity))
    feeders[0].start()
    await finished(store)

    assert most == engine.most
    assert {f"{number}": 1 for number in range(20)} == engine.executions
    assert [f"q{result.index}" for result in await results(store)] == [r.custom_id for r in await results(store)]
    await until(lambda: feeders[0].runs == 0)


async def test_what_is_left_of_a_job_is_told(
    store: FlakyStore, engine: Engine, clock: ManualClock, feeders: list[JobFeeder]
) -> None:
    await submit(store, 20)
    engine.open.clear()
    engine.free_items = 5
    feeders.append(feeder_of(store, engine, wall_s=lambda: clock.wall_ms() / 1000))
    feeders[0].start()
    await until(lambda: len(engine.running) == 4)
    clock.advance(0.5)

    await until(lambda: [job.items for job in feeders[0].work("demo")] == [15])
    [job] = feeders[0].work("demo")
    assert (RequestClass.BATCH, 4) == (job.request_class, job.in_flight)
    assert pytest.approx(10**6 - 0.5, abs=0.1) == job.left_s
    engine.open.set()
    await until(lambda: feeders[0].work("demo") == ())


@pytest.mark.slow
async def test_capacity_that_grows_is_used(store: FlakyStore, engine: Engine, feeders: list[JobFeeder]) -> None:
    await submit(store, 20)
    engine.open.clear()
    free = 1
    feeders.append(feeder_of(store, engine, capacity=lambda _pool: free))
    feeders[0].start()
    await until(lambda: len(engine.running) == 1)
    free = 3
    await until(lambda: len(engine.running) == 3)
    engine.open.set()
    await finished(store)


async def test_being_refused_slows_a_job_and_fails_no_item(store: FlakyStore, engine: Engine) -> None:
    await submit(store, 3)
    engine.errors["1"] = [QueueFullError("demo", 5, 2.0) for _ in range(10)] + [QueueUnavailableError("away", 7.0)] * 10
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    claim = await store.claim("A", takeover=False)
    assert claim is not None
    await JobRun(claim, RunTools(store, engine, SETTINGS, lambda: 100, sleep=sleep)).run()

    assert JobState.SUCCEEDED == await state(store)
    assert 21 == engine.executions["1"]
    assert not any(result.HasField("error") for result in await results(store))
    waits = [seconds for seconds in slept if seconds >= 2.0]
    assert ([True] * 10, [True] * 10) == ([2 <= s <= 2.5 for s in waits[:10]], [7 <= s <= 8.75 for s in waits[10:]])


async def test_failures_are_bounded_and_then_the_error_is_the_result(
    store: FlakyStore, engine: Engine, monkeypatch: pytest.MonkeyPatch, feeders: list[JobFeeder]
) -> None:
    monkeypatch.setattr("router.jobs.verdict.FAILURE_WAIT_S", 0.0)
    await submit(store, 3)
    engine.errors = {
        "0": [GenerationFailedError("r", 1)] * 2,
        "1": [GenerationFailedError("r", 1)] * 9,
        "2": [InvalidRequestError.of("prompt", "is too long")] * 9,
    }
    feeders.append(feeder_of(store, engine))
    feeders[0].start()
    await finished(store)

    by_index = {result.index: result for result in await results(store)}
    assert {"0": 3, "1": 3, "2": 1} == engine.executions
    assert "0.3" == by_index[0].response.request_id
    assert ("GENERATION_FAILED", "INVALID_REQUEST") == (by_index[1].error.reason, by_index[2].error.reason)
    assert "prompt: is too long" == by_index[2].error.message
    record = await store.get("demo.1")
    assert record is not None
    assert (3, 2) == (record.results, record.failed)


async def test_a_bug_in_one_item_does_not_stop_the_job(
    store: FlakyStore, engine: Engine, monkeypatch: pytest.MonkeyPatch, feeders: list[JobFeeder]
) -> None:
    monkeypatch.setattr("router.jobs.verdict.FAILURE_WAIT_S", 0.0)
    await submit(store, 6)
    engine.errors["4"] = [KeyError("oops")] * 9
    feeders.append(feeder_of(store, engine))
    feeders[0].start()
    await finished(store)
    [failed] = [result for result in await results(store) if result.HasField("error")]
    assert (4, "INTERNAL") == (failed.index, failed.error.reason)
    assert "oops" not in failed.error.message


@pytest.mark.slow
async def test_a_feeder_that_vanished_is_followed_after_its_lease(
    store: FlakyStore, engine: Engine, clock: ManualClock, feeders: list[JobFeeder], shared: InProcessRedis
) -> None:
    await submit(store, 10)
    engine.open.clear()
    first = feeder_of(store, engine, "A")
    feeders.append(first)
    first.start()
    await until(lambda: len(engine.running) == 4)
    # Frozen: its tasks stay, but its Redis does not hear from it.
    store.away = True
    other = flaky(shared, lease_ms=1_000)
    standby = feeder_of(other, engine, "B")
    feeders.append(standby)
    standby.start()
    clock.advance(0.9)
    await looked(other)
    assert 0 == standby.runs
    clock.advance(0.2)
    await until(lambda: standby.runs == 1)
    engine.open.set()
    await finished(store)
    store.away = False
    await until(lambda: first.runs == 0)

    assert set(range(10)) == {result.index for result in await results(store)}
    assert 10 == len(await results(store))
    assert {1, 2} >= set(engine.executions.values())


async def test_results_wait_for_redis_to_come_back(
    store: FlakyStore, engine: Engine, feeders: list[JobFeeder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.jobs.run.STORE_RETRY_S", 0.01)
    await submit(store, 10)
    engine.open.clear()
    feeders.append(feeder_of(store, engine))
    feeders[0].start()
    await until(lambda: len(engine.running) == 4)
    store.away = True
    engine.open.set()
    await until(lambda: not engine.running)
    assert [] == await results(store)
    store.away = False
    await finished(store)
    assert {f"{number}": 1 for number in range(10)} == engine.executions


async def test_after_an_outage_feeders_get_one_lease_to_come_back(
    store: FlakyStore, engine: Engine, clock: ManualClock, feeders: list[JobFeeder]
) -> None:
    """Nobody could renew, so that a lease which ran out says nothing about its feeder."""
    await submit(store, 1)
    await store.claim("other", takeover=False)
    store.away = True
    feeders.append(feeder_of(store, engine, monotonic=clock.monotonic))
    feeders[0].start()
    await looked(store)
    clock.advance(5)
    await looked(store)
    store.away = False
    await looked(store)
    assert 0 == engine.executions.total()
    clock.advance(SETTINGS.lease_s)
    await finished(store)


async def test_draining_ends_what_is_in_flight_and_gives_the_job_back(
    store: FlakyStore, engine: Engine, feeders: list[JobFeeder]
) -> None:
    await submit(store, 10)
    engine.open.clear()
    first, second = feeder_of(store, engine, "A"), feeder_of(store, engine, "B")
    feeders.extend((first, second))
    first.start()
    await until(lambda: len(engine.running) == 4)
    drain = asyncio.create_task(first.drain(10.0))
    # Its first turn, in which it stops the runs.
    await asyncio.sleep(0)
    engine.open.set()
    await drain

    record = await store.get("demo.1")
    assert record is not None
    assert (4, "", 0) == (record.results, record.holder, first.runs)
    second.start()
    await finished(store)
    assert {f"{number}": 1 for number in range(10)} == engine.executions


async def test_draining_does_not_wait_for_items_that_were_refused(
    store: FlakyStore, engine: Engine, feeders: list[JobFeeder]
) -> None:
    await submit(store, 3)
    engine.errors = {f"{number}": [QueueFullError("demo", 5, 50.0)] for number in range(3)}
    feeders.append(feeder_of(store, engine))
    feeders[0].start()
    await until(lambda: engine.executions.total() == 3 and not engine.running)
    await asyncio.wait_for(feeders[0].drain(300.0), 30)
    assert (0, 0) == (feeders[0].runs, len(await results(store)))


async def test_a_claim_that_arrives_while_draining_is_given_back(
    store: FlakyStore, engine: Engine, feeders: list[JobFeeder], monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit(store, 3)
    claim = store.claim
    claimed = asyncio.Event()
    answer = asyncio.Event()

    async def slow(holder: str, *, takeover: bool) -> Any:
        found = await claim(holder, takeover=takeover)
        claimed.set()
        await answer.wait()
        return found

    monkeypatch.setattr(store, "claim", slow)
    feeders.append(feeder_of(store, engine))
    feeders[0].start()
    await claimed.wait()
    await feeders[0].drain(1.0)
    answer.set()

    async def released() -> bool:
        record = await store.get("demo.1")
        return record is not None and not record.holder

    await until(released)
    assert 0 == engine.executions.total()


@pytest.mark.slow
async def test_results_that_redis_lost_are_made_again(
    store: FlakyStore, engine: Engine, feeders: list[JobFeeder], shared: InProcessRedis
) -> None:
    await submit(store, 30)
    engine.open.clear()
    engine.free_items = 8
    feeders.append(feeder_of(store, engine))
    feeders[0].start()
    await until(lambda: shared.execute("HLEN", key_of("results")) == 8)
    # What a crash does: the newest writes are gone, in all keys alike.
    shared.execute("HDEL", key_of("results"), *range(3, 8))
    shared.execute("HSET", key_of("record"), "results", 3)
    shared.execute("DEL", key_of("done"))
    for result in await results(store):
        shared.execute("SETBIT", key_of("done"), result.index, 1)
    engine.open.set()
    await finished(store)

    assert set(range(30)) == {result.index for result in await results(store)}
    assert 30 == len(await results(store))
    assert 35 == engine.executions.total()


async def test_a_result_for_which_there_is_no_room_fails_its_item(
    shared: InProcessRedis, engine: Engine, feeders: list[JobFeeder]
) -> None:
    store = flaky(shared, tenant_bytes=1_200)
    await submit(store, 60)
    feeders.append(feeder_of(store, engine))
    feeders[0].start()
    await finished(store)

    found = await results(store)
    assert 60 == len(found)
    failed = [result.error for result in found if result.HasField("error")]
    assert 0 < len(failed) < 60
    assert {"JOB_LIMIT"} == {error.reason for error in failed}
    assert "tenant_bytes = 1,200" in failed[0].message
    assert 60 == engine.executions.total()


async def test_a_job_whose_bodies_are_gone_ends_and_the_feeder_goes_on_with_others(
    store: FlakyStore, shared: InProcessRedis, engine: Engine, feeders: list[JobFeeder]
) -> None:
    await submit(store, 30)
    engine.open.clear()
    feeders.append(feeder_of(store, engine))
    feeders[0].start()
    await until(lambda: len(engine.running) == 4)
    shared.execute("DEL", key_of("items"))
    await submit(store, 2, "demo.2")
    engine.open.set()

    await finished(store, "demo.2")

    assert JobState.FAILED is await state(store)
    await until(lambda: feeders[0].runs == 0)
    assert not engine.running


async def test_a_router_feeds_only_so_many_jobs(
    shared: InProcessRedis, engine: Engine, feeders: list[JobFeeder]
) -> None:
    store = flaky(shared, tenant_feeding=100)
    for number in range(5):
        await submit(store, 2, f"demo.{number}")
    engine.open.clear()
    settings = SETTINGS.model_copy(update={"jobs_per_router": 2})
    feeders.append(feeder_of(store, engine, settings=settings))
    feeders[0].start()
    await until(lambda: len(engine.running) == 2)
    await looked(store)
    assert 2 == feeders[0].runs
    engine.open.set()
    for number in range(5):
        await finished(store, f"demo.{number}")


async def test_a_failing_store_script_is_logged_and_tried_again(
    store: FlakyStore, engine: Engine, feeders: list[JobFeeder], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    sweep = store.sweep

    async def broken() -> int:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise PenstockError("a script failed")
        return await sweep()

    monkeypatch.setattr(store, "sweep", broken)
    await submit(store, 1)
    feeders.append(feeder_of(store, engine))
    feeders[0].start()
    await finished(store)
    assert calls >= 3
