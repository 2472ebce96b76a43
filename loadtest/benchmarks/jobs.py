"""The cost of a large job: `python -m loadtest.benchmarks.jobs --items 50000` prints a table.

It runs two routers and one simulated replica in this process, and a Redis of its own with an append-only file. Steps
take no time, so it measures everything around the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import redis.asyncio
from rich.console import Console
from rich.table import Table

from cluster.bootstrap.redis_server import EmbeddedRedis
from cluster.queue.redis.queue import RedisQueue
from cluster.queue.settings import limits_from
from cluster.settings import Settings, load_settings
from cluster.trust.secret import ClusterSecret
from deployments.engines.factory import build_engine
from deployments.replica.life import ReplicaPlan
from deployments.replica.replica import Replica
from loadtest.benchmarks.ending import end
from penstock.client import AsyncClient, JobItem, Message, Sampling
from router.build import build_router
from router.server import Router
from router.stores import redis_factory

MODEL = "demo"
INSTRUCTION = "You are a careful assistant. Answer in one short sentence, without repeating the question."
WORDS = 60
"""Random words per prompt, so that compression gains as much as on text, and not from repetition."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        console.status(f"a job of {options.items:,} items"),
    ):
        figures = asyncio.run(_bench(Path(folder), options.items, options.max_tokens))
    table = Table("figure", "value")
    for name, value in figures.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        for part, number in parts:
            table.add_row(f"{name} {part}".strip(), str(number))
    console.print(table)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


async def _bench(folder: Path, items: int, max_tokens: int) -> dict[str, Any]:
    server = await EmbeddedRedis.start(folder, folder / "redis.log")
    client = redis.asyncio.Redis.from_url(server.url)
    flags = {
        "cluster": {"state_dir": str(folder)},
        "router": {"port": 0},
        "pools": {MODEL: {"engine": "sim", "sim": {"time_scale": 0.0}}},
    }
    settings = load_settings(flags=flags, environ={})
    replica, routers = await _start(settings, server.url)
    try:
        targets = [f"127.0.0.1:{router.port}" for router in routers]
        async with AsyncClient(targets) as penstock:
            return await _measure(penstock, client, server.pid, items, max_tokens)
    finally:
        await asyncio.gather(*(router.stop(drain_s=1.0) for router in routers))
        await replica.stop(drain_s=1.0)
        await client.aclose()
        await server.stop()


async def _start(settings: Settings, url: str) -> tuple[Replica, list[Router]]:
    secret = ClusterSecret(secrets.token_bytes(32))
    limits = limits_from(settings.queue)
    plan = ReplicaPlan(
        replica_id="r0",
        pool=MODEL,
        pool_settings=settings.pools[MODEL],
        queue_settings=settings.queue,
        settings=settings.replica,
    )
    replica = Replica(plan, build_engine(plan.pool_settings), lambda: RedisQueue(url, MODEL, limits), secret)
    await replica.start()
    factory = redis_factory(settings, url)
    routers = [build_router(settings, secret, factory) for _ in range(2)]
    for router in routers:
        await router.start()
        await router.pools[MODEL].replicas.first_seen.wait()
    return replica, routers


async def _measure(penstock: AsyncClient, client: Any, redis_pid: int, items: int, max_tokens: int) -> dict[str, Any]:
    process = psutil.Process()
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    before = process.memory_info().rss
    job_items = [JobItem(f"request-{n}", _prompt(), sampling) for n in range(items)]
    memory = {"empty": await _redis_mb(client)}

    began = time.monotonic()
    job = await penstock.submit_job(MODEL, job_items)
    submitted = time.monotonic()
    memory["stored"] = await _redis_mb(client)
    del job_items

    results: Counter[int] = Counter()
    errors = 0
    largest = 0.0
    cpu = psutil.Process(redis_pid).cpu_times()
    async for update in penstock.watch_job(job.job_id):
        results.update(result.index for result in update.results)
        errors += sum(result.error is not None for result in update.results)
        largest = max(largest, process.memory_info().rss)
        job = update.job
    ended = time.monotonic()
    cpu_after = psutil.Process(redis_pid).cpu_times()
    memory["ended"] = await _redis_mb(client)
    await penstock.delete_job(job.job_id)
    # Redis frees memory on a thread of its own.
    await asyncio.sleep(2.0)
    memory["deleted"] = await _redis_mb(client)
    return {
        "items": items,
        "state": job.state,
        "results_once": len(results) == items and set(results.values()) == {1},
        "errors": errors,
        "submit_s": round(submitted - began, 2),
        "run_s": round(ended - submitted, 2),
        "items_per_s": round(items / (ended - submitted), 1),
        "redis_mb": memory,
        "redis_cpu_us_per_item": round(1e6 * (cpu_after.user + cpu_after.system - cpu.user - cpu.system) / items, 1),
        "process_mb": {"before": round(before / 1e6), "largest": round(largest / 1e6)},
    }


def _prompt() -> list[Message]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ("".join(random.choices(letters, k=random.randint(2, 9))) for _ in range(WORDS))
    return [Message("system", INSTRUCTION), Message("user", " ".join(words))]


async def _redis_mb(client: Any) -> float:
    return round(int((await client.info("memory"))["used_memory"]) / 1e6, 1)


if __name__ == "__main__":
    end("bench-jobs", main)
