"""A Redis Cluster: whoever owns a pool's slot is found, and found again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis import exceptions

from cluster.autoscaler.redis.store import RedisControlStore
from cluster.errors import QueueUnavailableError
from cluster.jobs.redis.store import RedisJobStore
from cluster.models import Windows
from cluster.queue.entries import Settlement
from cluster.queue.heartbeats import ReplicaBeat, RouterBeat
from cluster.queue.redis.bell import RedisBell
from cluster.queue.redis.queue import RedisQueue
from cluster.redis.keys import pool_key
from cluster.redis.slot_owner import LENIENT, SlotOwner
from cluster.redis.url import ClusterUrl
from penstock.models import ReplicaState
from tests.cluster.queue.backends import POOL, entry
from tests.cluster.queue.servers import find_program, launch, require_binary, wait_answer
from tests.support.certificates import LOOPBACK, Authority
from tests.support.ports import free_port
from tests.support.redis_clusters import SLOTS, RedisCluster, running_redis_cluster
from tests.support.waiting import until

MANY = Windows(sequences=1_000, kv_tokens=10**9, prefill_tokens=10**9)
KEY = pool_key(POOL, "pool")
SEED = ("seed", 7000)
PATIENCE_S = 20.0
"""How long a server may take that answers: longer than any halt of the machine."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    # Nobody dies here, and who only stands still must keep its slots.
    with running_redis_cluster(KEY, silent_ms=60_000) as running:
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


def test_few_servers_share_all_of_the_time_for_a_call() -> None:
    """Where only one is known, nobody else gets what it is not given."""
    assert [2.0, 1.0, 0.5, 0.5] == [owner().patience_s(servers) for servers in (1, 2, 4, 9)]


def opened(cluster: RedisCluster) -> RedisQueue:
    return RedisQueue(cluster.url, POOL, timeout_s=PATIENCE_S)


async def up(queue: RedisQueue) -> None:
    await queue.heartbeat_replica(ReplicaBeat("r1", b"", ReplicaState.READY, MANY, ()))
    await queue.heartbeat_router(RouterBeat("A", ("r1",)))


async def test_every_store_finds_the_server_of_its_keys(cluster: RedisCluster) -> None:
    queue, jobs = opened(cluster), RedisJobStore(cluster.url, POOL, timeout_s=PATIENCE_S)
    control, bell = RedisControlStore(cluster.url, POOL, PATIENCE_S), RedisBell(cluster.url, "A", PATIENCE_S)
    await up(queue)
    await jobs.create("job", "acme", b"")
    assert "me" == (await control.lead("me", 5.0)).holder
    # Rung at the owner of the slot, heard wherever the bell listens.
    await bell.start()
    await queue.heartbeat_router(RouterBeat("B", ("r1",)))
    grant = (await queue.submit("A", entry("q1"))).grant
    assert grant is not None
    assert "q1" == await queue.cancel("B", "acme", "q1")
    assert POOL == await asyncio.wait_for(bell.wait(), 60)
    assert cluster.keys(cluster.ports[0])
    assert [[], []] == [cluster.keys(port) for port in cluster.ports[1:]]
    await queue.release("A", "q1", grant.attempt, Settlement(1))
    for store in (queue, jobs, control, bell):
        await store.close()


async def test_a_slot_moves_under_load_and_nothing_is_lost(cluster: RedisCluster) -> None:
    first, _, third = cluster.ports
    queue = opened(cluster)
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


async def test_a_slot_that_moves_as_a_whole_is_never_away(cluster: RedisCluster) -> None:
    """Valkey 9 copies it first, and changes its owner in one step."""
    program = find_program()
    if program is None or program.name != "Valkey" or program.version < (9, 0, 0):
        pytest.skip("slots move as a whole from Valkey 9.0 on: this is NOT tested")
    first, second, _ = cluster.ports
    queue = opened(cluster)
    await up(queue)
    for source, target in ((first, second), (second, first)):
        place = "SLOTSRANGE", cluster.slot, cluster.slot, "NODE", cluster.name(target)
        assert "OK" == cluster.call(source, "CLUSTER", "MIGRATESLOTS", *place)
        moved = False
        while not moved:
            await queue.heartbeat_router(RouterBeat("A", ("r1",)))
            try:
                await asyncio.to_thread(cluster.call, source, "EXISTS", KEY)
            except exceptions.MovedError:
                moved = True
        await queue.heartbeat_router(RouterBeat("A", ("r1",)))
        assert cluster.keys(target)
    await queue.close()


async def test_a_bell_rings_while_the_server_of_its_slot_is_away() -> None:
    """Here one that answers and names a server where nobody listens as the owner of all slots."""
    away = free_port()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            words = [(await reader.readline(), await reader.readline())[1].strip() for _ in range(int(head[1:]))]
            match words:
                case [b"CLUSTER", *_]:
                    writer.write(b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % away)
                case [b"SUBSCRIBE", channel]:
                    name = b"$%d\r\n%b\r\n" % (len(channel), channel)
                    writer.write(b"*3\r\n$9\r\nsubscribe\r\n%b:1\r\n" % name)
                    writer.write(b"*3\r\n$7\r\nmessage\r\n%b$4\r\ndemo\r\n" % name)
                case _:
                    writer.write(b"+OK\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    bell = RedisBell(f"redis+cluster://127.0.0.1:{port}", "A")
    assert POOL == await bell.wait()
    await bell.close()
    server.close()


async def test_one_server_of_several_is_no_queue_and_the_error_says_so(cluster: RedisCluster) -> None:
    queue = RedisQueue(f"redis://127.0.0.1:{cluster.ports[1]}", POOL, timeout_s=PATIENCE_S)
    with pytest.raises(QueueUnavailableError, match=r"use redis\+cluster://"):
        await queue.reap()
    await queue.close()


async def test_tls_and_a_password_reach_every_server(tmp_path: Path) -> None:
    """One server with TLS only; a client that trusts another authority is refused."""
    authority, stranger = Authority(), Authority("stranger")
    certificate, key = authority.issue("redis", *LOOPBACK).write(tmp_path, "redis")
    ca = authority.write(tmp_path)
    port = free_port()
    command = (
        *(require_binary("7.0"), "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--save", ""),
        *(
            "--tls-cert-file",
            certificate,
            "--tls-key-file",
            key,
            "--tls-ca-cert-file",
            ca,
            "--tls-auth-clients",
            "no",
            "--tls-cluster",
            "yes",
        ),
        *("--cluster-enabled", "yes", "--requirepass", "p@ss", "--dir", str(tmp_path)),
    )
    process = launch(command)
    try:
        with redis.Redis(port=port, ssl=True, ssl_ca_certs=ca, password="p@ss", protocol=2, **LENIENT) as client:
            await asyncio.to_thread(wait_answer, client)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
            await until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), 20)
        url = f"rediss+cluster://:p%40ss@127.0.0.1:{port}"
        queue = RedisQueue(f"{url}?ssl_ca_certs={ca}", POOL, timeout_s=PATIENCE_S)
        await up(queue)
        assert (await queue.submit("A", entry("q1"))).grant
        await queue.close()
        other = RedisQueue(f"{url}?ssl_ca_certs={stranger.write(tmp_path, 'other')}", POOL)

        async def refused_for_the_certificate() -> bool:
            # On a busy machine a connection may also take too long.
            with pytest.raises(QueueUnavailableError) as refused:
                await other.reap()
            return "certificate verify failed" in str(refused.value)

        await until(refused_for_the_certificate)
        await other.close()
    finally:
        process.kill()
        process.wait()
