"""A Redis Cluster: whoever owns a pool's slot is found, and found again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from redis import exceptions

from cluster.autoscaler.redis_store import RedisControlStore
from cluster.errors import QueueUnavailableError
from cluster.jobs.redis_store import RedisJobStore
from cluster.models import ReplicaState, Windows
from cluster.queue import RedisBell, RedisQueue, ReplicaBeat, RouterBeat, Settlement
from cluster.queue.keys import pool_key
from cluster.queue.slot_owner import SlotOwner
from cluster.settings.redis_url import ClusterUrl
from tests.cluster.queue.backends import POOL, entry
from tests.support.redis_clusters import RedisCluster, running_redis_cluster

MANY = Windows(sequences=1_000, kv_tokens=10**9, prefill_tokens=10**9)
KEY = pool_key(POOL, "pool")
SEED = ("seed", 7000)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with running_redis_cluster(KEY) as running:
        yield running


def owner(slots: str = KEY) -> SlotOwner:
    return SlotOwner(ClusterUrl((SEED,)), slots, 2.0, {})


def shards(*names: bytes | None) -> list[object]:
    """What CLUSTER SLOTS answers where each server owns an equal part."""
    width = 16384 // len(names)
    return [[i * width, (i + 1) * width - 1, [name, 7001 + i, b"id"]] for i, name in enumerate(names)]


def test_the_owner_is_the_primary_whose_range_holds_the_slot() -> None:
    slots = owner()
    assert slots.slot in range(8192)
    assert ("a", 7001) == slots.learn(SEED, shards(b"a", b"b")[::-1])
    assert {("a", 7001), ("b", 7002), SEED} == set(slots.candidates())


def test_a_server_without_a_name_is_where_the_one_was_that_answered() -> None:
    assert ("seed", 7001) == owner().learn(SEED, shards(None, b""))


@pytest.mark.parametrize("reply", [[], [[0, 1, [b"a", 7001, b"id"]]], shards(b"?", b"?")])
def test_a_slot_that_nobody_owns_is_an_error(reply: list[object]) -> None:
    slots = owner()
    with pytest.raises(exceptions.ConnectionError, match=f"owns slot {slots.slot}"):
        slots.learn(SEED, reply)


def test_whom_a_server_names_is_asked_first_and_once() -> None:
    slots = owner()
    slots.hint("new", 7009)
    assert [("new", 7009), SEED] == slots.candidates()
    assert [SEED] == slots.candidates()


async def up(queue: RedisQueue) -> None:
    await queue.heartbeat_replica(ReplicaBeat("r1", b"", ReplicaState.READY, MANY, ()))
    await queue.heartbeat_router(RouterBeat("A", ("r1",)))


async def test_every_store_finds_the_server_of_its_keys(cluster: RedisCluster) -> None:
    queue, jobs = RedisQueue(cluster.url, POOL), RedisJobStore(cluster.url, POOL)
    control, bell = RedisControlStore(cluster.url, POOL), RedisBell(cluster.url, "A")
    await up(queue)
    await jobs.create("job", "acme", b"")
    assert "me" == (await control.lead("me", 5.0)).holder
    # Rung at the owner of the slot, heard wherever the bell listens.
    await bell.start()
    await queue.heartbeat_router(RouterBeat("B", ("r1",)))
    grant = (await queue.submit("A", entry("q1"))).grant
    assert grant is not None
    assert "q1" == await queue.cancel("B", "acme", "q1")
    assert POOL == await asyncio.wait_for(bell.wait(), 20)
    assert cluster.keys(cluster.ports[0])
    assert [[], []] == [cluster.keys(port) for port in cluster.ports[1:]]
    await queue.release("A", "q1", grant.attempt, Settlement(1))
    for store in (queue, jobs, control, bell):
        await store.close()


async def test_a_slot_moves_under_load_and_nothing_is_lost(cluster: RedisCluster) -> None:
    first, _, third = cluster.ports
    queue = RedisQueue(cluster.url, POOL)
    await up(queue)
    held = [(await queue.submit("A", entry(f"held{i}"))).grant for i in range(10)]

    await asyncio.to_thread(cluster.begin_move, first, third)
    with pytest.raises(QueueUnavailableError, match="on their way"):
        await queue.submit("A", entry("meanwhile"))
    await asyncio.to_thread(cluster.end_move, first, third)

    # Of one turn, so one pipeline: the old owner refuses them all, the new one lacks the script.
    after = await asyncio.gather(*(queue.submit("A", entry(f"after{i}")) for i in range(50)))
    assert all(answer.grant for answer in after)
    assert [[], []] == [cluster.keys(port) for port in cluster.ports[:2]]
    for grant in held:
        assert grant is not None
        await queue.release("A", grant.request_id, grant.attempt, Settlement(1))
    assert 50 == (await queue.heartbeat_router(RouterBeat("A", ("r1",)))).running
    await asyncio.to_thread(cluster.begin_move, third, first)
    await asyncio.to_thread(cluster.end_move, third, first)
    await queue.close()


async def test_one_server_of_several_is_no_queue_and_the_error_says_so(cluster: RedisCluster) -> None:
    queue = RedisQueue(f"redis://127.0.0.1:{cluster.ports[1]}", POOL)
    with pytest.raises(QueueUnavailableError, match=r"use redis\+cluster://"):
        await queue.reap()
    await queue.close()
