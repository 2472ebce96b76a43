"""Submits and grants per second, with two router processes on one Redis."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import dataclass, fields

from cluster.errors import PenstockError
from cluster.lifecycle import TaskOwner
from cluster.models import Windows
from cluster.queue.cells.names import cell_name
from cluster.queue.heartbeats import ReplicaBeat
from cluster.queue.redis.queue import RedisQueue
from loadtest.benchmarks.queue.meter import Meter
from loadtest.benchmarks.queue.router_process import Counts
from penstock.models import ReplicaState

PROCESSES = 2
CLIENTS = 128
"""Clients per router process, for each cell of the pool."""
REPLICAS = 16
"""Replicas of a cell."""
TENANTS = 1_000
SECONDS = 10.0
_LEAD_S = 3.0
"""Seconds for processes to warm up."""
_BEAT_S = 1.0


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """Counts of all router processes together."""

    slots: int
    submits_per_s: float
    grants_per_s: float
    at_once: float
    """Share of submits answered with a grant."""
    redis_us_per_request: float
    """CPU time of Redis' main thread per released request, including heartbeats, bells and mail."""
    redis_busy: float
    """CPU time of the busiest server's main thread per second."""
    busiest_us_per_request: float
    """CPU time of the busiest server's main thread per released request, of all servers' requests."""
    router_us_per_request: float
    """CPU time of the routers per released request."""
    scripts_per_request: float
    """Script calls per released request, with those of heartbeats."""
    servers_us_per_request: tuple[float, ...]
    """CPU time of each server's main thread per released request of all."""


@dataclass(frozen=True, slots=True)
class PoolParts:
    """A pool, and what works on it, in all cells and processes together."""

    name: str
    cells: int = 1
    replicas: int = REPLICAS
    processes: int = PROCESSES
    clients: int = PROCESSES * CLIENTS


async def run(
    url: str, meters: Sequence[Meter], sequences: int, seconds: float, *, pool: str = "", cells: int = 1
) -> EndToEnd:
    """Run two routers, with this many slots per replica. `meters`: of all servers. Each cell of the pool has as many
    replicas and clients as a pool of one.
    """
    parts = PoolParts(pool or f"ends-{sequences}", cells, REPLICAS * cells, PROCESSES, PROCESSES * CLIENTS * cells)
    return await run_parts(url, meters, sequences, seconds, parts)


async def run_parts(url: str, meters: Sequence[Meter], sequences: int, seconds: float, parts: PoolParts) -> EndToEnd:
    """Run a pool with these parts; arguments as of `run`."""
    cells, replicas = parts.cells, parts.replicas
    windows = Windows(sequences=sequences, kv_tokens=10**9, prefill_tokens=10**9)
    queues = [RedisQueue(url, cell_name(parts.name, cell)) for cell in range(cells)]
    with_beats = TaskOwner("replicas")

    async def beat() -> None:
        while True:
            for i in range(replicas):
                await queues[i % cells].heartbeat_replica(
                    ReplicaBeat(f"replica-{i:03d}", b"record", ReplicaState.READY, windows, ())
                )
            await asyncio.sleep(_BEAT_S)

    with_beats.spawn(beat(), "beats")
    children = await asyncio.gather(*(_start(url, f"router-{i + 1}", seconds, parts) for i in range(parts.processes)))
    starts_at = time.time() + _LEAD_S
    routers = [asyncio.create_task(_counts(child, starts_at)) for child in children]
    await asyncio.sleep(starts_at - time.time())
    before = [await meter.cpu_seconds() for meter in meters]
    called = [(await meter.traffic()).scripts for meter in meters]
    await asyncio.sleep(starts_at + seconds - time.time())
    used = [await meter.cpu_seconds() - began for meter, began in zip(meters, before, strict=True)]
    calls = sum([(await meter.traffic()).scripts for meter in meters]) - sum(called)
    counts = await asyncio.gather(*routers)
    await with_beats.close()
    for queue in queues:
        await queue.close()
    total = Counts(*(sum(getattr(each, field.name) for each in counts) for field in fields(Counts)))
    if not total.releases:
        raise PenstockError(f"no request ended within {seconds:.1f} s: the machine is too busy, or the time too short")
    return EndToEnd(
        slots=replicas * sequences,
        submits_per_s=total.submits / seconds,
        grants_per_s=total.grants / seconds,
        at_once=total.at_once / max(1, total.submits),
        redis_us_per_request=1e6 * sum(used) / total.releases,
        redis_busy=max(used) / seconds,
        busiest_us_per_request=1e6 * max(used) / total.releases,
        router_us_per_request=1e6 * total.cpu_s / total.releases,
        scripts_per_request=calls / total.releases,
        servers_us_per_request=tuple(1e6 * each / total.releases for each in used),
    )


async def _start(url: str, router_id: str, seconds: float, parts: PoolParts) -> Process:
    """Start a router process. At the return it works."""
    options = {"url": url, "pool": parts.name, "router-id": router_id, "replicas": parts.replicas, "tenants": TENANTS}
    options |= {"clients": parts.clients // parts.processes, "seconds": seconds, "cells": parts.cells}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtest.benchmarks.queue.router_process", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None  # noqa: S101 - it is a pipe
    await child.stdout.readline()
    return child


async def _counts(child: Process, starts_at: float) -> Counts:
    """Tell a router process when to count, and return its counts."""
    try:
        output, _ = await child.communicate(f"{starts_at}\n".encode())
    except asyncio.CancelledError:
        child.kill()
        await child.wait()
        raise
    if child.returncode:
        raise RuntimeError(f"a router ended with status {child.returncode}")
    return Counts(**json.loads(output))
