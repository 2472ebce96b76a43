"""Choosing among more tenants than one look at the line reads: Redis in process and elsewhere grants alike."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cluster.clock import ManualClock
from cluster.models import Windows
from cluster.queue.entries import Grant, QueueLimits, Settlement
from cluster.queue.heartbeats import ReplicaBeat, RouterBeat
from cluster.redis.in_process.server import InProcessRedis
from penstock.models import ReplicaState, RequestClass
from tests.cluster.queue.backends import Backend, entry

TENANTS = 60
LIMITS = QueueLimits(lookahead=4, grant_heartbeats=1000)
"""At most 32 tenants are read, so the last ones never are before others left."""


async def _play(queue: Any, clock: ManualClock, seed: int) -> list[Any]:
    """Fill two replicas whose KV windows hold few entries, and end attempts until nothing moves."""
    source = random.Random(seed)
    windows = Windows(sequences=4, kv_tokens=200, prefill_tokens=150)

    async def beat() -> None:
        for replica in ("r1", "r2"):
            await queue.heartbeat_replica(ReplicaBeat(replica, b"", ReplicaState.READY, windows, ()))
        # Half of what waits may run on one replica only, and some of it nowhere.
        for router, links in (("A", ("r1", "r2")), ("B", ("r2",)), ("C", ())):
            await queue.heartbeat_router(RouterBeat(router, links))

    seen: list[Any] = []
    running: dict[str, tuple[str, Grant]] = {}

    async def collect(router: str) -> None:
        for grant in sorted((await queue.collect(router)).grants, key=lambda grant: grant.request_id):
            if grant.request_id not in running:
                seen.append(grant)
                running[grant.request_id] = (router, grant)

    await beat()
    for number in range(3 * TENANTS):
        tokens = source.choice((10, 40, 120))
        request = entry(
            f"q{number:03d}",
            tenant=f"tenant-{source.randrange(TENANTS):02d}",
            request_class=RequestClass(source.randrange(3)),
            prompt_tokens=tokens,
            kv_tokens=tokens + 10,
            weight=source.choice((0.5, 1.0, 3.0)),
            preferred_replicas=source.choice(((), (), ("r1",), ("r2",))),
        )
        seen.append(await queue.submit(source.choice("AABC"), request))
    for _ in range(3 * TENANTS):
        for router in "ABC":
            await collect(router)
        if not running:
            break
        request_id = source.choice(sorted(running))
        router, grant = running.pop(request_id)
        await queue.release(router, request_id, grant.attempt, Settlement(source.randrange(50)))
        clock.advance(0.2)
        await beat()
    return seen


@pytest.mark.parametrize("seed", range(3))
async def test_redis_grants_like_redis_in_process(redis_backend: Backend, seed: int) -> None:
    clock = ManualClock()
    local = Backend(clock, store=InProcessRedis(clock))

    expected = await _play(local.queue(LIMITS), clock, seed)
    answers = await _play(redis_backend.queue(LIMITS), redis_backend.clock, seed)
    await local.close()

    assert expected == answers
    assert len({seen.request_id for seen in expected if isinstance(seen, Grant)}) > TENANTS
