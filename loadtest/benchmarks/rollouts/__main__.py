"""Roll-outs of simulated engines under load: `python -m loadtest.benchmarks.rollouts --rollouts 500`.

Two routers, the replicas of several pools and Redis run in this process, over real gRPC. Each pool has one roll-out
after the other while clients stream. The changes are drawn by chance: other settings, other weights, engines that do
not start, engines that miss the SLO, and orders to go back in the middle. Counted are requests that failed, and
replicas beyond the pool's number and the surge.
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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cluster.announced.redis.store import RedisAnnouncedStore
from cluster.autoscaler.redis.store import RedisControlStore
from cluster.clock import SystemClock
from cluster.errors import EngineStartError
from cluster.jobs.pools import RedisJobPools
from cluster.jobs.redis.store import RedisJobStore
from cluster.jobs.settings import job_limits_from
from cluster.queue.redis.bell import RedisBell
from cluster.queue.redis.queue import RedisQueue
from cluster.queue.settings import limits_from
from cluster.records.redis.store import RedisRecordStore
from cluster.records.settings import record_limits_from
from cluster.redis.in_process.server import InProcessRedis
from cluster.registry.redis.store import RedisRegistryStore
from cluster.responses.redis.store import RedisResponseStore
from cluster.responses.settings import response_limits_from
from cluster.rollout.redis.store import RedisRolloutStore
from cluster.settings import PoolSettings, Settings, load_settings
from cluster.telemetry import configure_logging
from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from cluster.trust.secret import ClusterSecret
from deployments.engines.base import Engine
from deployments.engines.factory import build_engine
from loadtest.benchmarks.ending import end
from loadtest.benchmarks.rollouts.load import PoolLoad
from loadtest.benchmarks.rollouts.places import Places
from penstock.client import AsyncClient, PenstockClientError, RolloutAction, RolloutState
from router.build import build_router
from router.server import Router
from router.stores import QueueFactory

BROKEN = "broken"
"""Answer of an engine that does not start."""
KINDS = ("settings", "weights", "broken", "back", "settings", "weights", "back", "slow")
_GOOD = ("settings", "weights")
MISSED = "missed the SLO"
"""Words of a step that goes back because of measured times."""
_LONGEST_S = 300.0


@dataclass(slots=True)
class RollTally:
    """What happened in all roll-outs."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Roll-outs that did not end as they must, and pools with too many replicas."""
    too_slow: int = 0
    """Good changes that went back because the machine was too slow for the SLO."""
    times_s: list[float] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-rollouts", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=100, help="number of roll-outs (default %(default)s)")
    parser.add_argument("--pools", type=int, default=4, help="pools that change at the same time (default %(default)s)")
    parser.add_argument("--clients", type=int, default=3, help="clients of each pool (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="start of the random numbers (default %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    import uvloop

    configure_logging("error", "text")
    return int(uvloop.run(_bench(options, screen())))


async def _bench(options: argparse.Namespace, console: Console) -> int:
    draw, tally = random.Random(options.seed), RollTally()
    # Engine ends and lost starts are expected here.
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, Progress(console=console) as progress:
        task = progress.add_task("roll-outs", total=options.rollouts)
        settings = _settings(Path(folder), options.pools, draw)
        store, secret = InProcessRedis(SystemClock()), ClusterSecret(secrets.token_bytes(32))
        routers = [build_router(settings, secret, _stores(settings, store), port=0) for _ in range(2)]
        for router in routers:
            await router.start()
        left = iter(range(options.rollouts))
        try:
            loads = await asyncio.gather(
                *(
                    _pool(
                        *(name, settings, store, secret, routers, (options.clients, random.Random(draw.random()))),
                        left=left,
                        tally=tally,
                        done=lambda: progress.advance(task),
                    )
                    for name in settings.pools
                )
            )
        finally:
            await asyncio.gather(*(router.stop(drain_s=1.0) for router in routers))
    failures = [text for load in loads for text in load.failures]
    fields = {
        "rollouts": sum(tally.outcomes.values()),
        "outcomes": dict(sorted(tally.outcomes.items())),
        "requests": sum(load.ended for load in loads),
        "failed_requests": len(failures),
        "failures": failures[:20],
        "wrong": tally.wrong,
        "good_but_too_slow": tally.too_slow,
        "seconds": {"median": sorted(tally.times_s)[len(tally.times_s) // 2], "max": max(tally.times_s)},
    }
    _print(fields, console)
    if options.json:
        options.json.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    return 1 if failures or tally.wrong else 0


def _settings(folder: Path, pools: int, draw: random.Random) -> Settings:
    pool = {
        "engine": "sim",
        "sim": {"base_ms": 5.0, "per_token_us": 1.0, "max_num_seqs": 8},
        "slo": {"interactive": {"itl_p95_s": 0.3}},
        "control": {"mode": "off"},
        # No autoscaler runs: the places follow the surge.
        "autoscale": {"mode": "active", "max_replicas": 8},
        "rollout": {"judge_s": 0.2, "drain_s": 60.0},
    }
    flags: dict[str, Any] = {
        "cluster": {"state_dir": str(folder), "log_level": "error"},
        "router": {"http": {"port": 0}},
        "queue": {"heartbeat_s": 0.1, "lease_s": 2.0, "attach_grace_s": 4.0},
        "pools": {f"pool-{number}": {**pool, "replicas": draw.randint(1, 3)} for number in range(pools)},
    }
    return load_settings(flags=flags, environ={})


def _stores(settings: Settings, store: InProcessRedis) -> QueueFactory:
    limits, job_limits = limits_from(settings.queue), job_limits_from(settings.jobs)
    return QueueFactory(
        queue=lambda pool: RedisQueue(store, pool, limits),
        bell=lambda router_id: RedisBell(store, router_id),
        jobs=lambda pool: RedisJobStore(store, pool, job_limits),
        job_pools=lambda: RedisJobPools(store),
        control=lambda pool: RedisControlStore(store, pool),
        responses=lambda: RedisResponseStore(store, response_limits_from(settings)),
        records=lambda pool: RedisRecordStore(store, pool, record_limits_from(settings)),
        registry=lambda: RedisRegistryStore(store),
        rollout=lambda pool: RedisRolloutStore(store, pool),
        announced=lambda pool: RedisAnnouncedStore(store, pool),
    )


def _engine(pool: PoolSettings) -> Engine:
    if pool.sim.answer == BROKEN:
        raise EngineStartError("this engine does not start")
    return build_engine(pool)


async def _pool(
    name: str,
    settings: Settings,
    store: InProcessRedis,
    secret: ClusterSecret,
    routers: list[Router],
    load: tuple[int, random.Random],
    *,
    left: Any,
    tally: RollTally,
    done: Any,
) -> PoolLoad:
    """Have one roll-out after the other on one pool, under load."""
    (clients, draw), size = load, settings.pools[name].replicas
    limits, found = limits_from(settings.queue), PoolLoad(name)
    places = Places(
        *(settings, name, size, lambda cell: RedisQueue(store, cell, limits), lambda: RedisRolloutStore(store, name)),
        secret=lambda: secret,
        open_engine=_engine,
    )
    try:
        async with AsyncClient([f"127.0.0.1:{router.port}" for router in routers]) as client:
            await places.full.wait()
            running = asyncio.create_task(found.run(client, clients, draw))
            for number in left:
                surge = draw.choice((0, 0, 1))
                await places.settled()
                places.most = size
                await _one(client, name, number, draw.choice(KINDS), (surge, draw, tally))
                if places.most > size + surge:
                    tally.wrong.append(f"{name}: {places.most} replicas instead of {size} and a surge of {surge}")
                done()
            found.over = True
            await running
    finally:
        await places.close()
    return found


async def _one(
    client: AsyncClient, pool: str, number: int, kind: str, more: tuple[int, random.Random, RollTally]
) -> None:
    """Have one roll-out, and judge its end."""
    surge, draw, tally = more
    changes: dict[str, dict[str, Any]] = {
        "settings": {"max_num_seqs": 4 + number % 8},
        "weights": {"max_model_len": 4_096 + number},
        "broken": {"answer": BROKEN},
        "slow": {"base_ms": 400.0 + number / 10},
        "back": {"max_model_len": 4_096 + number},
    }
    sim = changes[kind]
    began = time.monotonic()
    while True:
        try:
            found = await client.start_rollout(pool, {"sim": sim}, surge=surge, judge_s=3.0 if kind == "slow" else None)
            break
        except PenstockClientError as error:
            if "already" not in str(error):
                raise
            sim["kv_tokens"] = 200_000 + number
    if kind == "back":
        await asyncio.sleep(draw.random() * 4)
        with suppress(PenstockClientError):
            await client.change_rollout(pool, RolloutAction.GO_BACK)
    while found.state.active and time.monotonic() - began < _LONGEST_S:
        await asyncio.sleep(0.1)
        found = await client.rollout(pool) or found
    tally.times_s.append(time.monotonic() - began)
    tally.outcomes[f"{kind}: {found.state}"] += 1
    must = {"settings": RolloutState.DONE, "weights": RolloutState.DONE, "broken": RolloutState.RETURNED}
    # The others may end before the order to go back, or before a slow replica has had enough requests.
    if kind in _GOOD and found.state is RolloutState.RETURNED and any(MISSED in step.text for step in found.steps):
        # Beside other work an engine in a loop with all others may pause for longer than the SLO.
        tally.too_slow += 1
    elif found.state is not must.get(kind, found.state) or found.state.active:
        tally.wrong.append(f"{pool}, number {number}, {kind}: {found.state}: {[step.text for step in found.steps]}")


def _print(fields: dict[str, Any], console: Console) -> None:
    table = Table(title="Roll-outs under load")
    add_columns(table, "figure", "value", words=("figure",))
    for outcome, count in fields["outcomes"].items():
        table.add_row(outcome, str(count))
    for name in ("rollouts", "requests", "failed_requests", "good_but_too_slow"):
        table.add_row(name, str(fields[name]))
    table.add_row("median seconds", f"{fields['seconds']['median']:.1f}")
    print_table(table, console)
    for text in (*fields["wrong"], *fields["failures"]):
        console.print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    end("bench-rollouts", main)
