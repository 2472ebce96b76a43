"""Process of the cluster: a router, or the replicas of a pool. It answers each input line with a line of JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

from router import polling  # noqa: F401 - as a router's process does, before anything that imports gRPC

# isort: split

import psutil

from cluster.gc_tuning import settle_heap
from cluster.queue.redis.queue import RedisQueue
from cluster.queue.settings import limits_from
from cluster.settings import Settings, load_settings
from cluster.telemetry.logs import configure_logging
from cluster.trust.secret import ClusterSecret
from deployments.engines.factory import build_engine
from deployments.replica.life import ReplicaPlan
from deployments.replica.replica import Replica
from loadtest.benchmarks.child import answer
from router.build import build_router
from router.server import Router
from router.stores import redis_factory

_STOP_S = 1.0
_LOOK_S = 0.005
"""Time between two looks at the event loop."""
_TURN_S = 0.001
"""Shortest timer; what it is late by is the length of a turn."""


class Turns:
    """CPU time of the event loop until a timer of a millisecond is heard: how long a stream waits for others, whatever
    else the machine does.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._taken_s: list[float] = []
        self._began_s = 0.0
        self._look()

    def _look(self) -> None:
        self._began_s = time.thread_time()
        # uvloop runs what is due at once before it looks at sockets, and timers after it.
        self._loop.call_later(_TURN_S, self._ended)

    def _ended(self) -> None:
        self._taken_s.append(time.thread_time() - self._began_s)
        self._loop.call_later(_LOOK_S, self._look)

    def take(self) -> list[float]:
        """Return what was measured since the last call."""
        taken, self._taken_s = self._taken_s, []
        return taken


def _figures_of(router: Router | None, replicas: list[Replica], turns: Turns) -> dict[str, Any]:
    process = psutil.Process()
    spent = process.cpu_times()
    figures: dict[str, Any] = {
        "rss_mb": round(process.memory_info().rss / 1e6, 1),
        "cpu_s": round(spent.user + spent.system, 3),
        "turns_s": [round(turn, 6) for turn in turns.take()],
    }
    if router is not None:
        figures |= {
            "port": router.port,
            "http_port": router.http.port if router.http is not None else 0,
            "open_calls": router._inference.open_calls,
            "attached": sum(link.busy for pool in router.pools.values() for link in pool.replicas._links.values()),
            "lag_s": round(max(pool.longest_lag_s for pool in router.pools.values()), 3),
            "links": sum(len(pool.replicas.connected()) for pool in router.pools.values()),
        }
    else:
        figures |= {
            "sequences": sum(replica.table.sequences for replica in replicas),
            "attempts": sum(len(replica.table._attempts) for replica in replicas),
        }
    return figures


async def _run_router(settings: Settings, url: str, secret: ClusterSecret) -> Router:
    router = build_router(settings, secret, redis_factory(settings, url))
    await router.start()
    return router


async def _run_replicas(settings: Settings, url: str, secret: ClusterSecret, pool: str, count: int) -> list[Replica]:
    limits = limits_from(settings.queue)
    replicas = []
    section = settings.pools[pool]
    for number in range(count):
        # Replicas that step at the same moment would make bursts that no real cluster has.
        sim = section.sim.model_copy(update={"base_ms": section.sim.base_ms * (1 - number / (5 * count))})
        own = section.model_copy(update={"sim": sim})
        plan = ReplicaPlan(f"{pool}-{number}", pool, own, settings.queue, settings.replica)
        replicas.append(Replica(plan, build_engine(plan.pool_settings), lambda: RedisQueue(url, pool, limits), secret))
    # Each one warms its engine up, for a step.
    await asyncio.gather(*(replica.start() for replica in replicas))
    return replicas


async def _serve(options: argparse.Namespace) -> None:
    flags = {"cluster": {"state_dir": str(options.folder)}, **options.sections}
    settings = load_settings(flags=flags, environ={})
    # One value for all nodes of a run. Only this machine reaches their ports.
    configure_logging("error", "json", role=options.role)
    secret = ClusterSecret(options.redis.encode().ljust(32, b"0")[:32])
    router: Router | None = None
    replicas: list[Replica] = []
    if options.role == "router":
        router = await _run_router(settings, options.redis, secret)
    else:
        replicas = await _run_replicas(settings, options.redis, secret, options.role, options.count)
    settle_heap()
    turns = Turns()
    await answer(lambda _: _figures_of(router, replicas, turns))
    if router is not None:
        await router.stop(drain_s=_STOP_S)
    await asyncio.gather(*(replica.stop(drain_s=_STOP_S) for replica in replicas))


def main() -> None:
    """Serve until standard input ends."""
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--redis", required=True)
    parser.add_argument("--sections", type=json.loads, required=True)
    parser.add_argument("--role", required=True)
    parser.add_argument("--count", type=int, default=1)
    uvloop.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
