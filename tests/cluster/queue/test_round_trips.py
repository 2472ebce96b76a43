"""The idle path: one round trip to Redis before dispatch and one after."""

from __future__ import annotations

import pytest
import redis

from cluster.queue.entries import Settlement
from cluster.queue.heartbeats import ReplicaBeat, RouterBeat
from cluster.queue.redis.queue import RedisQueue
from penstock.models import ReplicaState
from tests.cluster.queue.backends import WIDE, Backend, entry

pytestmark = pytest.mark.every_store("connections")


class Counter:
    """Counts what a server was sent, its own questions left out."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._asked = 0
        self._seen = self._read()

    def _read(self) -> tuple[int, int]:
        info = self._client.info("everything")
        self._asked += 1
        return info["total_reads_processed"] - self._asked, info.get("cmdstat_evalsha", {"calls": 0})["calls"]

    def since(self) -> tuple[int, int]:
        """Return (socket reads, script calls) since the last look."""
        before, self._seen = self._seen, self._read()
        return self._seen[0] - before[0], self._seen[1] - before[1]


async def _request(queue: RedisQueue, request_id: str) -> None:
    submitted = await queue.submit("A", entry(request_id))
    await queue.release("A", request_id, submitted.grant.attempt, Settlement(1))


async def test_one_idle_request_needs_one_round_trip_before_dispatch_and_one_after(redis_backend: Backend) -> None:
    queue = redis_backend.queue()
    await queue.heartbeat_replica(ReplicaBeat("r1", b"", ReplicaState.READY, WIDE, ()))
    await queue.heartbeat_router(RouterBeat("A", ("r1",)))
    # The first call of a script loads it.
    await _request(queue, "first")
    client = redis_backend.server.client()
    counter = Counter(client)

    submitted = await queue.submit("A", entry("q1"))
    before = counter.since()
    mail = await queue.release("A", "q1", submitted.grant.attempt, Settlement(1))
    after = counter.since()
    client.close()

    assert submitted.grant.replica_id == "r1"
    assert mail.grants == ()
    assert before == (1, 1)
    assert after == (1, 1)


async def test_the_idle_path_rings_no_bell(redis_backend: Backend) -> None:
    """A grant in the answer needs no second look."""
    queue = redis_backend.queue()
    await queue.heartbeat_replica(ReplicaBeat("r1", b"", ReplicaState.READY, WIDE, ()))
    await queue.heartbeat_router(RouterBeat("A", ("r1",)))
    client = redis_backend.server.client()
    client.config_resetstat()

    await _request(queue, "q1")
    commands = client.info("commandstats")
    client.close()

    assert "cmdstat_evalsha" in commands
    assert "cmdstat_publish" not in commands
