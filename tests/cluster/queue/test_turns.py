"""Calls that a router makes in one turn of its loop share a script call, and each keeps its own answer."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import msgpack
import pytest

from cluster.errors import PenstockError, QueueFullError, QueueUnavailableError
from cluster.queue.entries import QueueLimits, Settlement
from cluster.redis.script import PLAIN, ScriptStep
from penstock.models import ReplicaState
from tests.cluster.queue.backends import WIDE, Backend, Scene, entry

pytestmark = pytest.mark.every_store("how refusals are worded, and what scripts may call")


def calls(backend: Backend, command: str = "evalsha") -> int:
    """Count the script calls, or others, that the server got since the last time, and forget them."""
    assert backend.server is not None
    with contextlib.closing(backend.server.client()) as client:
        count: int = client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]
        client.config_resetstat()
        return count


async def started(backend: Backend, limits: QueueLimits | None = None) -> Scene:
    """Bring up a pool of one replica; its scripts are loaded."""
    scene = Scene(backend.queue(limits), backend.clock)
    await scene.start({"r1": replace(WIDE, sequences=20)})
    grants = [(await scene.queue.submit("A", entry(f"first-{i}"))).grant for i in range(3)]
    await scene.queue.release("A", "first-0", grants.pop(0).attempt, Settlement(1))
    await asyncio.gather(*(scene.queue.release("A", g.request_id, g.attempt, Settlement(1)) for g in grants))
    await scene.queue.observe()
    calls(backend)
    return scene


async def test_what_a_router_asks_in_one_turn_goes_in_one_call(redis_backend: Backend) -> None:
    queue = (await started(redis_backend)).queue
    submitted = await asyncio.gather(*(queue.submit("A", entry(f"q{i}")) for i in range(20)))
    assert [0] * 20 == [one.position for one in submitted]
    assert {f"q{i}" for i in range(20)} == {one.grant.request_id for one in submitted}
    assert 1 == calls(redis_backend)

    grants = [one.grant for one in submitted]
    *mail, more, request = await asyncio.gather(
        queue.release("A", "q0", grants[0].attempt, Settlement(1)),
        queue.requeue("A", "q1", grants[1].attempt, Settlement(1)),
        queue.refuse("A", "q2", grants[2].attempt),
        queue.withdraw("A", "q3", None),
        queue.collect("A"),
        queue.submit("A", entry("more")),
        queue.cancel("A", "acme", "q4"),
    )
    assert [(), ("q1",), (), (), ("q1", *(f"q{i}" for i in range(4, 20)))] == [
        tuple(sorted((grant.request_id for grant in each.grants), key=lambda name: int(name[1:]))) for each in mail
    ]
    assert more.grant is None
    assert "q4" == request
    assert 1 == calls(redis_backend)


async def test_a_call_alone_needs_no_turn(redis_backend: Backend) -> None:
    queue = (await started(redis_backend)).queue
    granted = (await queue.submit("A", entry("q"))).grant
    await queue.release("A", "q", granted.attempt, Settlement(1))
    assert 2 == calls(redis_backend)


async def test_a_long_turn_takes_several_calls(redis_backend: Backend) -> None:
    """So others never wait long for one."""
    queue = (await started(redis_backend)).queue
    await asyncio.gather(*(queue.submit("A", entry(f"q{i}")) for i in range(33)))
    assert 2 == calls(redis_backend)
    await asyncio.gather(*(queue.submit("A", entry(f"p{i}")) for i in range(65)))
    assert 3 == calls(redis_backend)


async def test_other_calls_keep_their_place_between_those_of_a_turn(redis_backend: Backend) -> None:
    queue = (await started(redis_backend)).queue
    *_, seen, _, _ = await asyncio.gather(
        *(queue.submit("A", entry(f"q{i}")) for i in range(2)),
        queue.observe(),
        *(queue.submit("A", entry(f"p{i}")) for i in range(2)),
    )
    assert 2 == seen.running
    assert 4 == (await queue.observe()).running


async def test_a_refusal_is_told_to_the_one_that_was_refused(redis_backend: Backend) -> None:
    queue = (await started(redis_backend, QueueLimits(max_waiting=1))).queue
    answers = await asyncio.gather(*(queue.submit("A", entry(f"q{i}")) for i in range(22)), return_exceptions=True)
    assert [False] * 21 + [True] == [isinstance(answer, QueueFullError) for answer in answers]


async def test_a_call_that_fails_fails_alone(redis_backend: Backend) -> None:
    queue = (await started(redis_backend)).queue
    step = ScriptStep(*queue._head_of("turn"), b"\x92\xa7release\x91\xa1A")  # without a request id

    async def ask_badly() -> None:
        await queue._pipeline.call(PLAIN, b"", step)

    before, error, after = await asyncio.gather(
        queue.submit("A", entry("q1")), ask_badly(), queue.submit("A", entry("q2")), return_exceptions=True
    )
    assert isinstance(error, PenstockError)
    assert "queue script failed" in str(error)
    assert not isinstance(error, QueueUnavailableError)
    assert ["q1", "q2"] == [each.grant.request_id for each in (before, after)]
    assert 1 == calls(redis_backend)
    assert 2 == (await queue.observe()).replicas[0].sequences


async def test_a_release_that_fails_adds_nothing_to_the_ledger(redis_backend: Backend) -> None:
    """Another one of the same tenant, day and turn is entered once, and in full."""
    queue = (await started(redis_backend)).queue
    grants = [(await queue.submit("A", entry(f"q{i}"))).grant for i in range(3)]
    [before] = await queue.usage("acme", 0, 10**6)
    # A number of cached tokens that is none comes after three that are.
    bad = msgpack.packb(["release", ["A", "q1", grants[1].attempt, 7, 1, 7, "many", 7.0, 7.0]])
    step = ScriptStep(*queue._head_of("turn"), bad)

    async def ask_badly() -> None:
        await queue._pipeline.call(PLAIN, b"", step)

    used = Settlement(3, requests=1, prompt_tokens=5)
    _, error, _ = await asyncio.gather(
        queue.release("A", "q0", grants[0].attempt, used),
        ask_badly(),
        queue.release("A", "q2", grants[2].attempt, used),
        return_exceptions=True,
    )
    assert "queue script failed" in str(error)
    [after] = await queue.usage("acme", 0, 10**6)
    assert (2, 10, 6) == (
        *(after.requests - before.requests, after.prompt_tokens - before.prompt_tokens),
        after.output_tokens - before.output_tokens,
    )


async def test_a_full_redis_refuses_what_adds_and_takes_what_frees(redis_backend: Backend) -> None:
    """In whatever order one turn has them."""
    queue = (await started(redis_backend)).queue
    grants = [(await queue.submit("A", entry(f"q{i}"))).grant for i in range(3)]
    assert redis_backend.server is not None
    with redis_backend.server.full():
        answers = await asyncio.gather(
            queue.submit("A", entry("before")),
            *(queue.release("A", grant.request_id, grant.attempt, Settlement(1)) for grant in grants),
            queue.submit("A", entry("after")),
            return_exceptions=True,
        )
    refused = [isinstance(answer, QueueUnavailableError) and "OOM" in str(answer) for answer in answers]
    assert [True, False, False, False, True] == refused
    assert 0 == (await queue.observe()).running


async def test_a_server_that_lost_its_scripts_gets_them_again(redis_backend: Backend) -> None:
    queue = (await started(redis_backend)).queue
    assert redis_backend.server is not None
    with contextlib.closing(redis_backend.server.client()) as client:
        client.script_flush()
    answers = await asyncio.gather(*(queue.submit("A", entry(f"q{i}")) for i in range(3)), queue.observe())
    assert all(answer.grant for answer in answers[:3])


async def test_a_bell_rings_again_after_its_mail_was_read_in_the_same_turn(redis_backend: Backend) -> None:
    scene = Scene(redis_backend.queue(), redis_backend.clock)
    await scene.start({"r1": replace(WIDE, sequences=2)}, ("A", "B"))
    queue = scene.queue
    grants = [(await queue.submit("A", entry(f"q{i}"))).grant for i in range(2)]
    for i in range(2):
        await queue.submit("B", entry(f"w{i}"))
    calls(redis_backend)

    _, mail, _ = await asyncio.gather(
        queue.release("A", "q0", grants[0].attempt, Settlement(1)),
        queue.collect("B"),
        queue.release("A", "q1", grants[1].attempt, Settlement(1)),
    )

    assert ["w0"] == [grant.request_id for grant in mail.grants]
    assert 2 == calls(redis_backend, "publish")
    assert ["w0", "w1"] == sorted(grant.request_id for grant in (await queue.collect("B")).grants)


async def _commands_of_releases(backend: Backend, tenants: int, replicas: int) -> int:
    """Count the commands that 20 releases of one turn need, while others wait."""
    scene = Scene(backend.queue(), backend.clock)
    names = [f"{tenants}-{replicas}-{number}" for number in range(20)]
    windows = replace(WIDE, sequences=20 // replicas, kv_tokens=10**6, prefill_tokens=10**6)
    await scene.start({f"r{number}": windows for number in range(replicas)})
    entries = [replace(entry(name), tenant=f"tenant-{number % tenants}") for number, name in enumerate(names)]
    grants = [(await scene.queue.submit("A", each)).grant for each in entries]
    assert replicas == len({grant.replica_id for grant in grants})
    for number in range(replicas):
        await scene.beat_replica(f"r{number}", state=ReplicaState.DRAINING)
    await scene.queue.submit("A", replace(entry(f"{names[0]}-waits"), tenant="other"))
    await scene.queue.collect("A")
    assert backend.server is not None
    with contextlib.closing(backend.server.client()) as client:
        client.config_resetstat()
        await asyncio.gather(
            *(scene.queue.release("A", grant.request_id, grant.attempt, Settlement(1)) for grant in grants)
        )
        counts = client.info("commandstats")
        leave_out = ("cmdstat_info", "cmdstat_config|resetstat", "cmdstat_config")
        total: int = sum(each["calls"] for name, each in counts.items() if name not in leave_out)
        client.flushall()
    return total


async def test_releases_of_many_tenants_and_replicas_need_hardly_more_commands(redis_backend: Backend) -> None:
    """Each record is its own, but all are read with one command, and stored with one."""
    alone = await _commands_of_releases(redis_backend, 1, 1)
    many_replicas = await _commands_of_releases(redis_backend, 1, 20)
    many_tenants = await _commands_of_releases(redis_backend, 20, 20)
    assert alone + 20 > many_replicas
    assert alone + 30 > many_tenants
