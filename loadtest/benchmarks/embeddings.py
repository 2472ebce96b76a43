"""The cost of embeddings: `python -m loadtest.benchmarks.embeddings MODEL` prints a table.

It runs a Redis, a router and one vLLM replica in this process. It asks for the vectors of short texts through the whole
path, over gRPC and over HTTP, and of the engine alone with the same token ids.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.table import Table

from cluster.bootstrap.redis_server import EmbeddedRedis
from cluster.models import NOTHING_TO_SAMPLE, GenerationSpec, PoolingSpec, PromptLogprobs, SequenceEnd
from cluster.queue.redis.queue import RedisQueue
from cluster.queue.settings import limits_from
from cluster.settings import load_settings
from cluster.trust.secret import ClusterSecret
from deployments.engines.base import Engine
from deployments.engines.factory import build_engine
from deployments.replica.inputs import GroupingEngine
from deployments.replica.life import ReplicaPlan
from deployments.replica.replica import Replica
from loadtest.benchmarks.ending import end
from penstock.client import AsyncClient
from penstock.models import ModelTask, PositionLogprobs
from router.build import build_router
from router.server import Router
from router.stores import redis_factory

POOL = "vectors"
WORDS = ("queue", "token", "stream", "replica", "router", "engine", "batch", "cache", "prompt", "model", "latency")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder or hub id of a model that embeds")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, console.status(f"{options.texts} texts"):
        figures = asyncio.run(_bench(Path(folder), options.model, options.texts, options.rounds))
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:g}")
    console.print(table)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


async def _bench(folder: Path, model: str, texts: int, rounds: int) -> dict[str, float]:
    server = await EmbeddedRedis.start(folder, folder / "redis.log")
    flags = {
        "cluster": {"state_dir": str(folder)},
        "router": {"port": 0, "http": {"port": 0}},
        "pools": {POOL: {"model": model}},
    }
    settings = load_settings(flags=flags, environ={})
    secret, limits = ClusterSecret(secrets.token_bytes(32)), limits_from(settings.queue)
    plan = ReplicaPlan("r0", POOL, settings.pools[POOL], settings.queue, settings.replica)
    engine = build_engine(plan.pool_settings)
    replica = Replica(plan, engine, lambda: RedisQueue(server.url, POOL, limits), secret)
    await replica.start()
    router = build_router(settings, secret, redis_factory(settings, server.url))
    try:
        await router.start()
        await router.pools[POOL].replicas.first_seen.wait()
        return await _measure(router, engine, texts, rounds)
    finally:
        await router.stop(drain_s=1.0)
        await replica.stop(drain_s=1.0)
        await server.stop()


async def _measure(router: Router, engine: Engine, number: int, rounds: int) -> dict[str, float]:
    texts = [" ".join(WORDS[(n + k) % len(WORDS)] for k in range(6 + n % 8)) for n in range(number)]
    async with AsyncClient(f"127.0.0.1:{router.port}") as client, aiohttp.ClientSession() as session:
        ids = [list((await client.count_tokens(POOL, text)).token_ids) for text in texts]
        http = router.http
        url = f"http://127.0.0.1:{http.port if http is not None else 0}/v1/embeddings"

        async def grpc() -> None:
            await client.embed(POOL, texts)

        async def posted(encoding: str) -> None:
            body = {"model": POOL, "input": texts, "encoding_format": encoding}
            async with session.post(url, json=body) as reply:
                if reply.status != 200 or len((await reply.json())["data"]) != number:
                    raise RuntimeError(f"status {reply.status}")

        async def one() -> None:
            await client.embed(POOL, texts[0])

        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "engine alone": lambda: _alone(engine, ids),
            "grpc": grpc,
            "http base64": lambda: posted("base64"),
            "http numbers": lambda: posted("float"),
            "one text": one,
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values():
            await way()
        # In turns, so that other work on the machine hits all alike.
        for _ in range(rounds):
            for name, way in ways.items():
                began = time.perf_counter()
                await way()
                times[name].append(time.perf_counter() - began)
    found = {f"{name}, ms": round(1000 * statistics.median(each), 1) for name, each in times.items()}
    return {"texts": number, "tokens": sum(map(len, ids)), **found}


class _Sink:
    """Receiver of a group's end."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[SequenceEnd] = asyncio.get_running_loop().create_future()

    def on_tokens(self, token_ids: Sequence[int], text: str, logprobs: Sequence[PositionLogprobs] | None) -> None:
        """Ignore tokens. There are none."""

    def on_prompt_logprobs(self, found: PromptLogprobs) -> None:
        """Ignore them. There are none."""

    def on_end(self, end: SequenceEnd) -> None:
        self.ended.set_result(end)


async def _alone(engine: Engine, ids: Sequence[Sequence[int]]) -> None:
    spec = PoolingSpec(ModelTask.EMBED, tuple(map(len, ids)))
    prompt = [token for each in ids for token in each]
    sink = _Sink()
    await GroupingEngine(engine).submit("alone", GenerationSpec(prompt, NOTHING_TO_SAMPLE, pooling=spec), sink)
    await sink.ended


if __name__ == "__main__":
    end("bench-embeddings", main)
