"""Who has waited for longer than its class is promised lets others pass, and is not forgotten."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgpack
import redis

from cluster.models import Windows
from cluster.queue.entries import Grant, Settlement
from cluster.queue.redis.keys import pool_keys
from cluster.queue.redis.scripts import load_constants
from penstock.models import RequestClass
from tests.cluster.queue.backends import POOL, Backend, Scene, entry

LATE_PER_CALL, LATE_LEAST = (int(load_constants()[name]) for name in ("LATE_PER_CALL", "LATE_LEAST"))
ONE = Windows(sequences=1, kv_tokens=1000, prefill_tokens=1000)
USED = Settlement(10)


async def busy(scene: Scene) -> Grant:
    """Bring up one replica that has one slot, and take it."""
    await scene.start({"r1": ONE})
    grant: Grant = (await scene.queue.submit("A", entry("q0"))).grant
    return grant


async def wait(scene: Scene, seconds: float, grant: Grant) -> None:
    """Let time pass while the slot stays taken."""
    running = {"r1": [(grant.request_id, grant.attempt)]}
    for _ in range(round(seconds * 2)):
        scene.clock.advance(0.5)
        await scene.beat_replica("r1", running=tuple(running["r1"]))
        await scene.beat_router("A", started=((grant.request_id, grant.attempt),))


async def give_back(scene: Scene, grant: Grant) -> Grant:
    """End what holds the slot; return who got it."""
    (following,) = (await scene.queue.release("A", grant.request_id, grant.attempt, USED)).grants
    return following


async def serve(scene: Scene, grant: Grant, most: int) -> list[str]:
    """End what holds the slot, again and again; return who got it."""
    order = []
    for _ in range(most):
        mail = await scene.queue.release("A", grant.request_id, grant.attempt, USED)
        if not mail.grants:
            break
        (grant,) = mail.grants
        order.append(grant.request_id)
    return order


async def test_late_ones_let_those_pass_that_are_not(scene: Scene) -> None:
    grant = await busy(scene)
    for name in ("old1", "old2"):
        await scene.queue.submit("A", entry(name, late_after_ms=2000))
    await wait(scene, 3, grant)
    for name in ("new1", "new2"):
        await scene.queue.submit("A", entry(name, late_after_ms=2000))

    assert await serve(scene, grant, 4) == ["new1", "new2", "old1", "old2"]


async def test_nobody_passes_one_that_is_late_just_now(scene: Scene) -> None:
    grant = await busy(scene)
    await scene.queue.submit("A", entry("in_time", late_after_ms=2000))
    await wait(scene, 1.5, grant)
    await scene.queue.submit("A", entry("new", late_after_ms=2000))

    assert await serve(scene, grant, 2) == ["in_time", "new"]


async def test_without_a_bound_the_order_is_that_of_arrival(scene: Scene) -> None:
    grant = await busy(scene)
    await scene.queue.submit("A", entry("old"))
    await wait(scene, 60, grant)
    await scene.queue.submit("A", entry("new"))

    assert await serve(scene, grant, 2) == ["old", "new"]


async def test_one_late_request_comes_after_lookahead_others(scene: Scene) -> None:
    grant = await busy(scene)
    await scene.queue.submit("A", entry("old1", late_after_ms=1000))
    await scene.queue.submit("A", entry("old2", late_after_ms=1000))
    await wait(scene, 2, grant)
    lookahead = scene.queue.limits.lookahead
    for number in range(2 * lookahead + 2):
        await scene.queue.submit("A", entry(f"new{number}", late_after_ms=60_000))

    order = await serve(scene, grant, 3 * lookahead)

    assert order.index("old1") == lookahead
    assert order.index("old2") == 2 * lookahead + 1
    assert [name for name in order if name.startswith("new")] == [f"new{n}" for n in range(2 * lookahead + 2)]


async def test_tenants_and_classes_keep_their_shares(scene: Scene) -> None:
    grant = await busy(scene)
    await scene.queue.submit("A", entry("chat", late_after_ms=1000, request_class=RequestClass.INTERACTIVE))
    await scene.queue.submit("A", entry("old", late_after_ms=1000, tenant="other"))
    await wait(scene, 2, grant)
    await scene.queue.submit("A", entry("mine1", late_after_ms=1000))
    await scene.queue.submit("A", entry("mine2", late_after_ms=1000))

    assert await serve(scene, grant, 4) == ["chat", "old", "mine1", "mine2"]


async def test_what_goes_on_is_never_late(scene: Scene) -> None:
    grant = await busy(scene)
    await scene.queue.submit("A", entry("moved", late_after_ms=1000))
    await scene.queue.release("A", "q0", grant.attempt, USED)
    (moved,) = (await scene.beat_router("A")).mail.grants
    for name in ("w1", "w2"):
        await scene.queue.submit("A", entry(name, late_after_ms=60_000))
    await wait(scene, 2, moved)

    mail = await scene.queue.requeue("A", "moved", moved.attempt, USED)

    assert [each.request_id for each in mail.grants] == ["moved"]


async def test_a_late_wish_does_not_pass_one_that_is_in_time(scene: Scene) -> None:
    grant = await busy(scene)
    await scene.queue.submit("A", entry("old", late_after_ms=1000, preferred_replicas=("r1",)))
    await wait(scene, 2, grant)
    await scene.queue.submit("A", entry("new", late_after_ms=1000, preferred_replicas=("r2",)))

    assert await serve(scene, grant, 2) == ["new", "old"]


async def test_positions_count_those_that_pass(scene: Scene) -> None:
    grant = await busy(scene)
    await scene.queue.submit("A", entry("old", late_after_ms=1000))
    await scene.queue.submit("A", entry("next", late_after_ms=60_000))
    await wait(scene, 2, grant)

    mail = await scene.queue.release("A", "q0", grant.attempt, USED)
    submitted = await scene.queue.submit("A", entry("new", late_after_ms=1000))

    assert [each.request_id for each in mail.grants] == ["next"]
    assert submitted.position == 0
    assert (await scene.queue.submit("A", entry("old"))).position == 1


async def test_the_longest_wait_is_that_of_late_ones_too(scene: Scene) -> None:
    grant = await busy(scene)
    await scene.queue.submit("A", entry("old", late_after_ms=1000))
    await scene.queue.submit("A", entry("next", late_after_ms=60_000))
    await wait(scene, 4, grant)
    (grant,) = (await scene.queue.release("A", "q0", grant.attempt, USED)).grants
    await scene.queue.submit("A", entry("new", late_after_ms=1000))

    assert (await scene.queue.observe()).longest_wait_ms[RequestClass.STANDARD] == 4000


async def test_a_late_one_may_be_cancelled_adopted_and_expire(scene: Scene) -> None:
    await scene.start({"r1": ONE}, routers=("A", "B"))
    grant = (await scene.queue.submit("A", entry("q0"))).grant
    for name in ("cancelled", "adopted", "expires"):
        bound = 5000 if name == "expires" else 0
        await scene.queue.submit("A", entry(name, late_after_ms=1000, start_within_ms=bound))
    await wait(scene, 2, grant)
    await scene.queue.submit("A", entry("new", late_after_ms=1000))
    (grant,) = (await scene.queue.release("A", "q0", grant.attempt, USED)).grants
    assert grant.request_id == "new"

    await scene.beat_router("B")
    assert (await scene.queue.adopt("B", "acme", "adopted")).position == 1
    await scene.queue.withdraw("A", "cancelled", None)
    await wait(scene, 4, grant)
    orders = (await scene.beat_router("A", started=(("new", grant.attempt),))).mail.orders
    await scene.beat_router("B")

    assert [(each.request_id, each.kind) for each in orders if each.kind == "expired"] == [("expires", "expired")]
    await scene.queue.release("A", "new", grant.attempt, USED)
    (last,) = (await scene.beat_router("B")).mail.grants
    assert last.request_id == "adopted"
    await scene.queue.release("B", "adopted", last.attempt, USED)
    await scene.queue.collect("A")


async def test_calls_move_a_bounded_number(scene: Scene) -> None:
    grant = await busy(scene)
    for number in range(LATE_PER_CALL + 10):
        await scene.queue.submit("A", entry(f"old{number}", late_after_ms=1000))
    await wait(scene, 2, grant)
    await scene.queue.submit("A", entry("new", late_after_ms=60_000))

    # A call gets no further than to those that it could not move, and one at the same time may move only a few.
    first = await give_back(scene, grant)
    second = await give_back(scene, first)
    scene.clock.advance(0.05)
    third = await give_back(scene, second)

    assert [first.request_id, second.request_id] == [f"old{LATE_PER_CALL}", f"old{LATE_PER_CALL + 1 + LATE_LEAST}"]
    assert third.request_id == "new"


async def test_a_command_moves_many_late_ones(redis_backend: Backend) -> None:
    """Else a line that is late as a whole costs each call several times as much."""
    scene = Scene(redis_backend.queue(), redis_backend.clock)
    grant = await busy(scene)
    for number in range(LATE_PER_CALL + 1):
        await scene.queue.submit("A", entry(f"old{number}", late_after_ms=1000))
    await wait(scene, 2, grant)
    assert redis_backend.server is not None
    with contextlib.closing(redis_backend.server.client()) as client:
        client.config_resetstat()
        following = await give_back(scene, grant)
        stats = client.info("commandstats")

    assert following.request_id == f"old{LATE_PER_CALL}"
    assert LATE_PER_CALL > sum(each["calls"] for each in stats.values())


async def test_entries_of_an_older_release_are_never_late(redis_backend: Backend) -> None:
    scene = Scene(redis_backend.queue(), redis_backend.clock)
    grant = await busy(scene)
    for name in ("older", "late"):
        await scene.queue.submit("A", entry(name, late_after_ms=1000))
    assert redis_backend.server is not None
    client = redis_backend.server.client()
    try:
        _cut(client, pool_keys(POOL), "older")
    finally:
        client.close()
    await wait(scene, 2, grant)
    await scene.queue.submit("A", entry("new", late_after_ms=1000))

    assert await serve(scene, grant, 3) == ["older", "new", "late"]


def _cut(client: redis.Redis, keys: Sequence[str], name: str) -> None:
    """Leave what an older release wrote: a pool that nobody marked anything in, and an entry without its last field."""
    pool, entries = keys[:2]
    fields = msgpack.unpackb(client.get(pool), raw=True)
    client.set(pool, msgpack.packb(fields[:21], use_bin_type=False))
    fields = msgpack.unpackb(client.hget(entries, name), raw=True)
    client.hset(entries, name, msgpack.packb(fields[:30], use_bin_type=False))
