"""Submits and grants per second, with two router processes on one Redis."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, fields

from cluster.lifecycle import TaskOwner
from cluster.models import Windows
from cluster.queue.heartbeats import ReplicaBeat
from cluster.queue.redis.queue import RedisQueue
from loadtest.benchmarks.queue.meter import Meter
from loadtest.benchmarks.queue.router_process import Counts
from penstock.models import ReplicaState

PROCESSES = 2
CLIENTS = 128
"""Clients per router process."""
REPLICAS = 16
TENANTS = 1_000
SECONDS = 10.0
_LEAD_S = 4.0
"""Seconds for processes to start and warm up."""
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
    """CPU time of Redis' main thread per second."""


async def run(url: str, meter: Meter, sequences: int, seconds: float) -> EndToEnd:
    """Run two routers, with this many slots per replica."""
    pool = f"ends-{sequences}"
    windows = Windows(sequences=sequences, kv_tokens=10**9, prefill_tokens=10**9)
    queue = RedisQueue(url, pool)
    with_beats = TaskOwner("replicas")

    async def beat() -> None:
        while True:
            for i in range(REPLICAS):
                await queue.heartbeat_replica(
                    ReplicaBeat(f"replica-{i:03d}", b"record", ReplicaState.READY, windows, ())
                )
            await asyncio.sleep(_BEAT_S)

    with_beats.spawn(beat(), "beats")
    starts_at = time.time() + _LEAD_S
    routers = [asyncio.create_task(_router(url, pool, f"router-{i + 1}", starts_at, seconds)) for i in range(PROCESSES)]
    await asyncio.sleep(starts_at - time.time())
    before = await meter.cpu_seconds()
    await asyncio.sleep(starts_at + seconds - time.time())
    used = await meter.cpu_seconds() - before
    counts = await asyncio.gather(*routers)
    await with_beats.close()
    await queue.close()
    total = Counts(*(sum(getattr(each, field.name) for each in counts) for field in fields(Counts)))
    return EndToEnd(
        slots=REPLICAS * sequences,
        submits_per_s=total.submits / seconds,
        grants_per_s=total.grants / seconds,
        at_once=total.at_once / total.submits,
        redis_us_per_request=1e6 * used / total.releases,
        redis_busy=used / seconds,
    )


async def _router(url: str, pool: str, router_id: str, starts_at: float, seconds: float) -> Counts:
    options = {"url": url, "pool": pool, "router-id": router_id, "replicas": REPLICAS, "tenants": TENANTS}
    options |= {"clients": CLIENTS, "starts-at": starts_at, "seconds": seconds}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtest.benchmarks.queue.router_process", *words, stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await child.communicate()
    except asyncio.CancelledError:
        child.kill()
        await child.wait()
        raise
    if child.returncode:
        raise RuntimeError(f"{router_id} ended with status {child.returncode}")
    return Counts(**json.loads(output))
