"""The Redis client: one pipeline per turn, replies that cannot mix, and failures that end in time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

from cluster.errors import PenstockError, QueueUnavailableError, SettingsError
from cluster.models import Windows
from cluster.queue.entries import Settlement
from cluster.queue.heartbeats import ReplicaBeat, RouterBeat
from cluster.queue.redis.queue import RedisQueue
from penstock.models import ReplicaState
from tests.cluster.queue import servers
from tests.cluster.queue.backends import Backend, Scene, entry
from tests.cluster.queue.servers import Server
from tests.support.waiting import until

pytestmark = pytest.mark.every_store("connections")

MANY = Windows(sequences=1000, kv_tokens=10**6, prefill_tokens=10**6)
PATIENCE_S = 20.0
"""How long a server may take that answers: longer than any halt of the machine."""


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server that a test may stop and start."""
    server = servers.start("redis-6.2", tmp_path)
    yield server
    server.process.kill()
    server.process.wait()


async def _up(queue: RedisQueue) -> None:
    await queue.heartbeat_replica(ReplicaBeat("r1", b"", ReplicaState.READY, MANY, ()))
    await queue.heartbeat_router(RouterBeat("A", ("r1",)))


async def test_calls_of_one_turn_share_a_pipeline(redis_backend: Backend) -> None:
    queue = redis_backend.queue()
    await _up(queue)
    # The first call of a script in this process loads it, on round trips of its own.
    await asyncio.gather(*(queue.submit("A", entry(f"first-{i}")) for i in range(2)))
    sent = []
    connection = queue._pipeline._connection
    send = connection.send_packed_command

    async def count(command: list[bytes], **options: bool) -> None:
        sent.append(len(command))
        await send(command, **options)

    connection.send_packed_command = count
    answers = await asyncio.gather(*(queue.submit("A", entry(f"q{i}")) for i in range(100)))

    assert [answer.grant.request_id for answer in answers] == [f"q{i}" for i in range(100)]
    assert len(sent) == 1


async def test_a_storm_of_cancels_never_mixes_replies(redis_backend: Backend) -> None:
    queue = redis_backend.queue()
    await _up(queue)
    answered = 0

    async def one(i: int) -> None:
        nonlocal answered
        answer = await queue.submit("A", entry(f"q{i}"))
        assert answer.grant.request_id == f"q{i}"
        assert answer.grant.attempt == f"base-q{i}.1"
        mail = await queue.release("A", f"q{i}", f"base-q{i}.1", Settlement(1))
        assert mail.grants == ()
        answered += 1

    tasks = [asyncio.create_task(one(i)) for i in range(400)]
    for i, task in enumerate(tasks):
        if i % 3 == 0:
            task.cancel()
        if i % 20 == 0:
            await asyncio.sleep(0)
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
    assert answered >= 250
    assert (await queue.submit("A", entry("after"))).grant.request_id == "after"


async def test_forgotten_scripts_are_loaded_again(redis_backend: Backend) -> None:
    queue = redis_backend.queue()
    await _up(queue)
    assert redis_backend.server is not None
    client = redis_backend.server.client()
    client.script_flush()
    client.close()

    answers = await asyncio.gather(*(queue.submit("A", entry(f"q{i}")) for i in range(10)), queue.reap())

    assert all(answer.grant for answer in answers[:10])


async def test_one_failing_script_does_not_fail_its_neighbours(redis_backend: Backend) -> None:
    queue = redis_backend.queue()
    await _up(queue)
    script, head = queue._heads["submit"]
    broken = head + b"$1\r\n\xc1\r\n"  # not msgpack

    good = asyncio.create_task(queue.submit("A", entry("q1")))
    bad = queue._pipeline.call(script, broken)
    also_good = asyncio.create_task(queue.submit("A", entry("q2")))

    with pytest.raises(PenstockError) as raised:
        await bad
    assert not isinstance(raised.value, QueueUnavailableError)
    assert (await good).grant
    assert (await also_good).grant


async def test_a_server_that_stops_answering_fails_calls_in_time_and_comes_back(own_server: Server) -> None:
    queue = RedisQueue(own_server.url, "demo", timeout_s=PATIENCE_S)
    await _up(queue)
    os.kill(own_server.process.pid, signal.SIGSTOP)
    queue._pipeline._timeout_s = 0.3  # type: ignore[attr-defined]
    try:
        first = asyncio.create_task(queue.submit("A", entry("q1")))
        await until(lambda: bool(queue._pipeline._in_flight))
        behind = asyncio.create_task(queue.submit("A", entry("q2")))
        results = await asyncio.gather(first, behind, return_exceptions=True)
    finally:
        os.kill(own_server.process.pid, signal.SIGCONT)
        queue._pipeline._timeout_s = PATIENCE_S  # type: ignore[attr-defined]

    assert all(isinstance(result, QueueUnavailableError) for result in results)
    assert all(result.retry_after_s > 0 for result in results)
    assert (await queue.submit("A", entry("q3"))).grant
    await queue.close()


async def test_a_restarted_server_is_found_again(own_server: Server) -> None:
    queue = RedisQueue(own_server.url, "demo", timeout_s=PATIENCE_S)
    await _up(queue)
    own_server.process.kill()
    own_server.process.wait()
    with pytest.raises(QueueUnavailableError):
        await queue.submit("A", entry("q1"))

    again = servers.launch(own_server.command)
    try:
        client = own_server.client()
        servers.wait_answer(client)
        client.close()
        await _up(queue)
        assert (await queue.submit("A", entry("q1"))).grant
        await queue.close()
    finally:
        again.kill()
        again.wait()


async def test_an_outage_is_told_once_and_not_by_each_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mortal = servers.Mortal("redis-6.2", tmp_path)
    queue = RedisQueue(mortal.server.url, "demo", timeout_s=PATIENCE_S)
    try:
        for outages in (1, 2):
            await _up(queue)
            mortal.kill()
            for _ in range(20):
                with pytest.raises(QueueUnavailableError):
                    await queue.submit("A", entry("q1"))
            told = [record for record in caplog.records if record.msg == "queue.connection_lost"]
            assert outages == len(told)
            mortal.revive()
    finally:
        await queue.close()
        mortal.kill()


@pytest.mark.parametrize("stale", ["yes", "no"], ids=["READONLY", "MASTERDOWN"])
@pytest.mark.parametrize("kind", ["redis-6.2", "redis-7.0"])
async def test_a_demoted_server_is_left_for_the_one_behind_its_name_now(tmp_path: Path, kind: str, stale: str) -> None:
    """Redis 6.2 says it in the text of a script's failure, 7.0 with a code of its own."""
    name = tmp_path / "name"
    with contextlib.ExitStack() as stack:
        old, new = (stack.enter_context(servers.running(kind)) for _ in range(2))
        name.symlink_to(old.url.removeprefix("unix://"))
        queue = RedisQueue(f"unix://{name}", "demo", timeout_s=PATIENCE_S)
        await _up(queue)
        demoted = stack.enter_context(contextlib.closing(old.client()))
        demoted.config_set("replica-serve-stale-data", stale)
        demoted.replicaof("127.0.0.1", "1")
        name.unlink()
        name.symlink_to(new.url.removeprefix("unix://"))

        with pytest.raises(QueueUnavailableError):
            await _up(queue)
        await _up(queue)
        assert (await queue.submit("A", entry("q1"))).grant
        await queue.close()


async def test_no_server_is_an_error_at_once(tmp_path: Path) -> None:
    queue = RedisQueue(f"unix://{tmp_path}/nobody", "demo")

    with pytest.raises(QueueUnavailableError):
        await queue.submit("A", entry("q1"))
    await queue.close()


@pytest.mark.parametrize("option", ["timeuot=3", "ssl_cert_reqs=none", "db=x", "protocol=5"])
def test_an_option_that_no_connection_takes_is_an_error_of_the_settings(option: str) -> None:
    """Where it was found at the first call, that call and all others were never answered."""
    with pytest.raises(SettingsError, match=r"redis\.url: ") as caught:
        RedisQueue(f"redis://:hunter2@127.0.0.1:1/0?{option}", "demo")
    assert "hunter2" not in str(caught.value)


async def test_closing_ends_calls_in_flight_and_refuses_new_ones(own_server: Server) -> None:
    queue = RedisQueue(own_server.url, "demo", timeout_s=30)
    await _up(queue)
    os.kill(own_server.process.pid, signal.SIGSTOP)
    try:
        waiting = asyncio.create_task(queue.submit("A", entry("q1")))
        await until(lambda: bool(queue._pipeline._in_flight))
        # The server itself would never answer.
        await queue.close()
        with pytest.raises(QueueUnavailableError):
            await waiting
    finally:
        os.kill(own_server.process.pid, signal.SIGCONT)
    with pytest.raises(QueueUnavailableError):
        await queue.submit("A", entry("q2"))
    await queue.close()


async def test_too_many_calls_are_refused_instead_of_kept(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.redis.pipeline._MAX_PENDING", 10)
    queue = RedisQueue(own_server.url, "demo", timeout_s=PATIENCE_S)
    await _up(queue)

    results = await asyncio.gather(*(queue.submit("A", entry(f"q{i}")) for i in range(30)), return_exceptions=True)

    assert sum(isinstance(result, QueueUnavailableError) for result in results) == 20
    await queue.close()


async def test_a_heartbeat_thread_uses_its_own_instance_and_loop(redis_backend: Backend) -> None:
    queue = redis_backend.queue()
    await _up(queue)
    versions: list[int] = []

    def beat() -> None:
        async def run() -> None:
            assert redis_backend.server is not None
            own = {"clock": redis_backend.clock, "run_id": lambda: "run-1"}
            mine = RedisQueue(redis_backend.server.url, "demo", timeout_s=PATIENCE_S, **own)
            versions.extend(
                [(await mine.heartbeat_router(RouterBeat("A", ("r1",)))).registry_version for _ in range(20)]
            )
            await mine.close()

        asyncio.run(run())

    thread = threading.Thread(target=beat)
    thread.start()
    for i in range(50):
        assert (await queue.submit("A", entry(f"q{i}"))).grant
    await asyncio.to_thread(thread.join)

    assert len(versions) == 20


async def test_an_existing_client_says_how_to_connect(redis_backend: Backend) -> None:
    assert redis_backend.server is not None
    client = redis.asyncio.Redis.from_url(redis_backend.server.plain_url)
    queue = RedisQueue(client, "demo", timeout_s=PATIENCE_S)
    await _up(queue)

    assert (await queue.submit("A", entry("q1"))).grant
    await queue.close()
    await client.aclose()


async def test_the_servers_own_time_and_run_id_are_used(redis_backend: Backend) -> None:
    assert redis_backend.server is not None
    client = redis_backend.server.client()
    run_id = client.info("server")["run_id"]
    queue = RedisQueue(redis_backend.server.url, "demo", timeout_s=PATIENCE_S)

    reply = await queue.heartbeat_router(RouterBeat("A", ()))

    assert reply.run_id.split("@")[0] == run_id
    seconds, _ = client.time()
    assert abs(reply.registry_version / 1000 - seconds) < 60
    client.close()
    await queue.close()


async def test_pools_do_not_see_each_other(redis_backend: Backend) -> None:
    one, other = redis_backend.queue(pool="one"), redis_backend.queue(pool="other")
    await Scene(one, redis_backend.clock).start({"r1": MANY})

    assert (await one.submit("A", entry("q1"))).grant
    assert (await other.submit("A", entry("q1"))).grant is None


@pytest.mark.parametrize("pool", ["", "a{b", "a}b"])
def test_a_pool_name_that_would_break_the_hash_tag_is_refused(pool: str) -> None:
    with pytest.raises(ValueError, match="braces"):
        RedisQueue("redis://localhost", pool)
