"""What a router leaves is moved in pieces: no call takes long, and nothing is lost or granted between two of them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from cluster.models import Windows
from cluster.queue.entries import QueueLimits, Settlement
from cluster.queue.redis.codec import pack
from cluster.queue.redis.scripts import load_constants
from tests.cluster.queue.backends import Backend, Scene, entry

CHUNK = int(load_constants()["CHUNK"])
MANY = 2 * CHUNK + 300
ONE = Windows(sequences=1, kv_tokens=10**6, prefill_tokens=10**6)


async def _crowd(backend: Backend, start_within_ms: int = 0, **limits: int) -> Scene:
    """Have many requests of router A wait behind one of B's that runs."""
    scene = Scene(backend.queue(QueueLimits(max_waiting=10**6, **limits)), backend.clock)
    await scene.start({"r1": ONE}, ("A", "B"))
    await scene.queue.submit("B", entry("running"))
    for first in range(0, MANY, 100):
        some = (entry(f"a{n}", start_within_ms=start_within_ms) for n in range(first, first + 100))
        await asyncio.gather(*(scene.queue.submit("A", one) for one in some))
    return scene


async def _one_second(scene: Scene) -> int:
    """Let everybody but A send a heartbeat; returns how many wait."""
    scene.clock.advance(1)
    running = (("running", "base-running.1"),)
    await scene.beat_replica("r1", running=running)
    return sum((await scene.beat_router("B", started=running)).waiting)


async def _retire_some(scene: Scene, *, keep: bool) -> None:
    """Do what a retirement does until its caller dies after the first call."""
    queue: Any = scene.queue
    if hasattr(queue, "_retire_some"):
        assert queue._retire_some("A", keep=keep)
    else:
        assert await queue._call("retire", pack("A", "router", int(keep)))


@pytest.mark.slow
async def test_a_returning_routers_requests_come_back_in_pieces_and_in_order(backend: Backend) -> None:
    scene = await _crowd(backend)
    await scene.queue.retire_router("A", keep=True)
    assert sum((await scene.beat_router("B")).waiting) == 0

    waiting = [sum((await scene.beat_router("A")).waiting) for _ in range(4)]

    assert waiting == [CHUNK, 2 * CHUNK, MANY, MANY]
    first, last = "a0", f"a{MANY - 1}"
    assert (await scene.beat_router("A", positions_of=(first, last))).positions == {first: 0, last: MANY - 1}


async def test_a_router_that_dies_on_its_return_leaves_all_of_them(backend: Backend) -> None:
    scene = await _crowd(backend)
    await scene.queue.retire_router("A", keep=True)
    await scene.beat_router("A")

    for _ in range(20):
        await _one_second(scene)

    assert backend.sizes()["entries"] == 1
    assert "parted" not in backend.sizes()


@pytest.mark.slow
async def test_a_heartbeat_takes_a_piece_of_what_dead_routers_left(backend: Backend) -> None:
    scene = await _crowd(backend, lease_ms=4000, attach_grace_ms=6000)
    waiting = [await _one_second(scene) for _ in range(8)]

    # A replica's and a router's heartbeat each second, and the first of them finds the lease over.
    assert waiting[:3] == [MANY] * 3
    assert sorted({MANY - n for n in waiting}) == [0, 2 * CHUNK, MANY]


async def test_a_heartbeat_takes_a_piece_of_what_expired_before_its_router_was_dead(backend: Backend) -> None:
    scene = await _crowd(backend, start_within_ms=500, lease_ms=4000, attach_grace_ms=1000)
    left = []
    for _ in range(8):
        assert await _one_second(scene) in (0, MANY - 2 * CHUNK)
        left.append(backend.sizes()["entries"] - 1)

    assert left[:4] == [MANY] * 4
    assert sorted({MANY - n for n in left}) == [0, 2 * CHUNK, MANY]


async def test_a_heartbeat_takes_a_piece_of_what_was_cancelled_at_a_dead_router(backend: Backend) -> None:
    scene = await _crowd(backend, lease_ms=4000, attach_grace_ms=1000)
    for first in range(0, MANY, 100):
        await asyncio.gather(*(scene.queue.cancel("B", "acme", f"a{n}") for n in range(first, first + 100)))
    left = []
    for _ in range(8):
        await _one_second(scene)
        left.append(backend.sizes()["entries"] - 1)

    assert left[:4] == [MANY] * 4
    assert sorted({MANY - n for n in left}) == [0, 2 * CHUNK, MANY]
    assert "parted" not in backend.sizes()


async def test_an_interrupted_retirement_is_finished_by_others(backend: Backend) -> None:
    scene = await _crowd(backend, attach_grace_ms=5000)
    await _retire_some(scene, keep=True)
    assert sum((await scene.beat_router("A", connected=())).waiting) == MANY
    await _retire_some(scene, keep=True)

    # Parked or not, it can be adopted, and nothing of it is granted.
    parked, waits = await scene.queue.adopt("B", "acme", "a0"), await scene.queue.adopt("B", "acme", f"a{MANY - 1}")
    assert (parked.grant, waits.grant) == (None, None)
    await scene.queue.release("B", "running", "base-running.1", Settlement(1))
    assert [grant.request_id for grant in (await scene.queue.collect("B")).grants] == ["a0"]

    for _ in range(10):
        await _one_second(scene)
    assert backend.sizes()["entries"] == 2


async def test_an_interrupted_farewell_is_finished_by_others(backend: Backend) -> None:
    scene = await _crowd(backend)
    await _retire_some(scene, keep=False)
    assert backend.sizes()["entries"] == MANY - CHUNK + 1

    for _ in range(2):
        await _one_second(scene)

    assert backend.sizes()["entries"] == 1
    assert "parted" not in backend.sizes()


async def test_each_call_of_a_retirement_is_short(redis_backend: Backend) -> None:
    scene = await _crowd(redis_backend)
    assert redis_backend.server is not None
    with contextlib.closing(redis_backend.server.client()) as client:
        for keep, moved in ((True, "cmdstat_zadd"), (False, "cmdstat_hdel")):
            client.config_resetstat()
            await scene.queue.retire_router("A", keep=keep)
            stats = client.info("commandstats")
            evalsha = stats["cmdstat_evalsha"]
            # A server that had not seen the script yet failed one.
            assert evalsha["calls"] - evalsha["failed_calls"] == 3
            assert stats[moved]["calls"] >= MANY
    assert redis_backend.sizes()["entries"] == 1


@pytest.mark.slow
async def test_results_beyond_a_bound_that_was_lowered_go_in_pieces(backend: Backend) -> None:
    before, after = (
        Scene(backend.queue(QueueLimits(max_result_bytes=most)), backend.clock) for most in (10**6, 5 * len(b"result"))
    )
    await before.start({"r1": ONE}, ("A",))

    async def keep(scene: Scene, name: str) -> None:
        grant = (await scene.queue.submit("A", entry(name, client_key=name))).grant
        await scene.queue.release("A", name, grant.attempt, Settlement(1))
        assert await scene.queue.finish_key("A", "acme", name, name, b"result")

    for number in range(CHUNK + 100):
        await keep(before, f"q{number}")
    await keep(after, "last")
    assert backend.sizes()["results"] == 101
    await after.beat_router("A")
    assert backend.sizes()["results"] == 5
