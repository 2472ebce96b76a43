"""Jobs outlive what runs them: router processes that are killed, and a Redis that is killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cluster.errors import QueueFullError
from penstock.client import AsyncClient, Job, JobItem, JobState, JobUpdate, Sampling
from penstock.v1.inference_pb2 import GenerateRequest, GenerateResponse
from router.jobs import Executor
from tests.cluster.queue.servers import Server, find_binary, launch, require_binary, wait_answer
from tests.support.stack import SECRET, Stack, running_stack
from tests.support.waiting import until

ITEMS = 300


class DurableRedis:
    """A server with an append-only file, as in production."""

    def __init__(self, folder: Path) -> None:
        binary = find_binary("7.0") or require_binary("6.2")
        socket = folder / "s"
        options = ("--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder))
        self._command = (binary, *options, "--appendonly", "yes", "--appendfsync", "everysec")
        self.url = f"unix://{socket}"
        self._folder = folder
        self.start()

    def start(self) -> None:
        """Start it; when it returns it answers."""
        self._process = launch(self._command)
        with contextlib.closing(Server("durable", self.url, self._process, self._command).client()) as client:
            wait_answer(client)

    def kill(self) -> None:
        """Kill it as `kill -9` does."""
        self._process.kill()
        self._process.wait()

    def save(self, folder: Path) -> None:
        """Copy what is on disk now."""
        shutil.copytree(self._folder, folder, ignore=shutil.ignore_patterns("s"))

    def crash_back_to(self, folder: Path) -> None:
        """Do what the loss of the machine does: only what was on disk then is there when the server comes back."""
        self.kill()
        for path in self._folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(folder, self._folder, dirs_exist_ok=True)
        self.start()


class RouterProcess:
    """A router in a process of its own."""

    def __init__(self, stack: Stack, folder: Path, name: str, port: int = 0) -> None:
        settings, self._ready = folder / "settings.json", folder / f"{name}.ready"
        settings.write_text(stack.settings.model_dump_json(), encoding="utf-8")
        self._ready.unlink(missing_ok=True)
        (folder / "secret").write_bytes(SECRET._keys[0])
        flags = ("--settings-json", str(settings), "--port", str(port), "--ready-file", str(self._ready))
        self._log = (folder / f"{name}.log").open("ab")
        self._process = subprocess.Popen([sys.executable, "-m", "router", *flags], stdout=self._log, stderr=self._log)
        self.port = 0
        self.router_id = ""

    async def up(self) -> RouterProcess:
        """Wait until it serves."""
        await until(lambda: self._ready.exists() or self._process.poll() is not None, 60)
        fields = json.loads(self._ready.read_text(encoding="utf-8"))
        self.port, self.router_id = int(fields["port"]), str(fields["router_id"])
        return self

    def kill(self) -> None:
        """Kill it as `kill -9` does."""
        self._process.kill()
        self._process.wait()
        self._log.close()


@pytest.fixture
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DurableRedis]:
    # Not tmp_path, whose name grows with the test's: socket paths are short.
    server = DurableRedis(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


def items(count: int = ITEMS) -> list[JobItem]:
    sampling = Sampling(max_tokens=10, temperature=0.0, ignore_eos=True)
    return [JobItem(f"q{number}", f"Question {number}?", sampling) for number in range(count)]


class Watcher:
    """Follows a job in the background."""

    def __init__(self, updates: AsyncIterator[JobUpdate]) -> None:
        self.seen: Counter[int] = Counter()
        self.errors = 0
        self.rewound = 0
        self.job: Job | None = None
        self.task = asyncio.create_task(self._run(updates))

    async def _run(self, updates: AsyncIterator[JobUpdate]) -> None:
        async for update in updates:
            self.job = update.job
            self.rewound += update.rewound
            self.seen.update(result.index for result in update.results)
            self.errors += sum(result.error is not None for result in update.results)

    async def has(self, results: int) -> None:
        """Wait until so many results came."""
        await until(lambda: len(self.seen) >= results or self.task.done(), 60)
        assert len(self.seen) >= results


async def check_results(client: AsyncClient, job_id: str, count: int = ITEMS) -> None:
    """Check that the store has exactly one good result for each item."""
    results = [result async for update in client.watch_job(job_id) for result in update.results]
    assert {f"q{number}": 1 for number in range(count)} == Counter(result.custom_id for result in results)
    assert {10} == {result.completion.usage.output_tokens for result in results if result.completion}


async def test_a_job_survives_the_death_of_every_router_and_of_redis(redis: DurableRedis, tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0, redis_url=redis.url, sim={"base_ms": 5.0}) as stack:
        routers = [await RouterProcess(stack, tmp_path, name).up() for name in ("a", "b")]
        try:
            async with AsyncClient([f"127.0.0.1:{router.port}" for router in routers]) as client:
                job = await client.submit_job("demo", items())
                watcher = Watcher(client.watch_job(job.job_id))
                await watcher.has(40)

                holder = (await client.get_job(job.job_id)).router_id
                fed = next(router for router in routers if router.router_id == holder)
                fed.kill()

                async def taken_over() -> bool:
                    return (await client.get_job(job.job_id)).router_id not in ("", holder)

                await until(taken_over)
                await watcher.has(100)

                redis.kill()
                await asyncio.sleep(0.5)
                redis.start()
                await watcher.has(170)

                for router in routers:
                    router.kill()
                routers = [
                    await RouterProcess(stack, tmp_path, name, router.port).up()
                    for name, router in zip(("c", "d"), routers, strict=True)
                ]
                await asyncio.wait_for(watcher.task, 60)

                assert watcher.job is not None
                assert (JobState.SUCCEEDED, ITEMS, 0) == (watcher.job.state, watcher.job.items, watcher.errors)
                assert {1} == set(watcher.seen.values())
                assert ITEMS == len(watcher.seen)
                await check_results(client, job.job_id)
        finally:
            for router in routers:
                router.kill()


async def test_results_that_redis_lost_are_made_again(redis: DurableRedis, tmp_path: Path) -> None:
    async with (
        running_stack(tmp_path, routers=2, redis_url=redis.url, sim={"base_ms": 5.0}) as stack,
        AsyncClient([f"127.0.0.1:{router.port}" for router in stack.routers]) as client,
    ):
        count = 400
        job = await client.submit_job("demo", items(count))
        watcher = Watcher(client.watch_job(job.job_id))
        await watcher.has(50)
        redis.save(tmp_path / "saved")
        await watcher.has(250)
        redis.crash_back_to(tmp_path / "saved")
        await asyncio.wait_for(watcher.task, 60)

        assert watcher.rewound >= 1
        assert {1} == set(watcher.seen.values())
        assert count == len(watcher.seen)
        await check_results(client, job.job_id, count)


async def test_two_routers_feed_jobs_of_one_redis_side_by_side(redis: DurableRedis, tmp_path: Path) -> None:
    async with running_stack(
        tmp_path, routers=2, redis_url=redis.url, sim={"time_scale": 0.0}, jobs={"jobs_per_router": 1}
    ) as stack:
        targets = [f"127.0.0.1:{router.port}" for router in stack.routers]
        async with AsyncClient(targets) as client:
            jobs = [await client.submit_job("demo", items(100)) for _ in range(4)]
            for job in jobs:
                await check_results(client, job.job_id, 100)
            for job in jobs:
                await client.delete_job(job.job_id)
            assert () == (await client.list_jobs()).jobs


async def test_a_router_that_stops_gives_its_jobs_back_at_once(redis: DurableRedis, tmp_path: Path) -> None:
    async with (
        running_stack(tmp_path, routers=2, redis_url=redis.url, sim={"base_ms": 5.0}, jobs={"lease_s": 60.0}) as stack,
        AsyncClient([f"127.0.0.1:{router.port}" for router in stack.routers]) as client,
    ):
        job = await client.submit_job("demo", items(150))
        watcher = Watcher(client.watch_job(job.job_id))
        await watcher.has(30)
        holder = (await client.get_job(job.job_id)).router_id
        feeding = next(router for router in stack.routers if router.router_id == holder)
        stack.routers.remove(feeding)
        await feeding.stop()
        await asyncio.wait_for(watcher.task, 30)
        assert {1} == set(watcher.seen.values())
        assert 150 == len(watcher.seen)


async def test_a_large_job_is_fed_whole(redis: DurableRedis, tmp_path: Path) -> None:
    count = 3_000
    sampling = Sampling(max_tokens=1, temperature=0.0)
    async with (
        running_stack(tmp_path, routers=2, redis_url=redis.url, sim={"time_scale": 0.0}) as stack,
        AsyncClient([f"127.0.0.1:{router.port}" for router in stack.routers], timeout=60.0) as client,
    ):
        job = await client.submit_job("demo", (JobItem(f"q{n}", f"{n}", sampling) for n in range(count)))
        results = [result async for update in client.watch_job(job.job_id) for result in update.results]
        assert {f"q{n}": 1 for n in range(count)} == Counter(result.custom_id for result in results)
        assert not [result.error for result in results if result.error]


async def test_a_full_line_slows_jobs_and_fails_no_item(
    redis: DurableRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0
    execute = Executor.__call__

    async def counted(self: Executor, tenant: str, request: GenerateRequest) -> GenerateResponse:
        nonlocal refused
        try:
            return await execute(self, tenant, request)
        except QueueFullError:
            refused += 1
            raise

    monkeypatch.setattr(Executor, "__call__", counted)
    async with (
        running_stack(
            tmp_path, redis_url=redis.url, sim={"max_num_seqs": 2, "base_ms": 2.0}, queue={"max_waiting": 1}
        ) as stack,
        AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as client,
    ):
        jobs = [await client.submit_job("demo", items(20)) for _ in range(3)]
        for job in jobs:
            await check_results(client, job.job_id, 20)
    assert refused > 0
