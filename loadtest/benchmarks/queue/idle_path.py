"""The idle path: round trips of one request while no request waits."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.models import Windows
from cluster.queue.entries import Settlement
from cluster.queue.heartbeats import ReplicaBeat, RouterBeat
from cluster.queue.redis.queue import RedisQueue
from loadtest.benchmarks.queue.clients import entry
from loadtest.benchmarks.queue.meter import Meter
from penstock.models import ReplicaState

_POOL = "idle"
_WINDOWS = Windows(sequences=8, kv_tokens=10**6, prefill_tokens=10**6)


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """Round trips of a request to Redis."""

    before_dispatch: int
    after: int


async def count_round_trips(url: str, meter: Meter) -> RoundTrips:
    """Send one request through a pool with room."""
    queue = RedisQueue(url, _POOL)
    await queue.heartbeat_replica(ReplicaBeat("replica", b"record", ReplicaState.READY, _WINDOWS, ()))
    await queue.heartbeat_router(RouterBeat("router", ("replica",)))
    # The first call of each script loads it.
    await _request(queue)
    start = await meter.traffic()
    submitted = await queue.submit("router", entry(1, 1))
    granted = await meter.traffic()
    if submitted.grant is None:
        raise RuntimeError("a pool with room did not grant at once")
    await queue.release("router", submitted.grant.request_id, submitted.grant.attempt, Settlement(1))
    ended = await meter.traffic()
    await queue.close()
    for step, scripts in (("submit", granted.scripts - start.scripts), ("release", ended.scripts - granted.scripts)):
        if scripts != 1:
            raise RuntimeError(f"{step} made {scripts} script calls")
    return RoundTrips(granted.reads - start.reads, ended.reads - granted.reads)


async def _request(queue: RedisQueue) -> None:
    submitted = await queue.submit("router", entry(0, 1))
    if submitted.grant is not None:
        await queue.release("router", submitted.grant.request_id, submitted.grant.attempt, Settlement(1))
