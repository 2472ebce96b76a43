"""What waits with a router that does not reach a replica hides nobody from it."""

from __future__ import annotations

import contextlib
from typing import Any

from cluster.models import Windows
from cluster.queue.entries import QueueLimits, Settlement
from penstock.models import RequestClass
from tests.cluster.queue.backends import WIDE, Backend, Scene, entry

ONE = Windows(sequences=1, kv_tokens=10**6, prefill_tokens=10**6)
WALL = 150
"""More than 8 x `lookahead`."""


async def _wall(scene: Scene, links: tuple[str, ...], count: int = WALL, **changes: Any) -> None:
    """Have requests of router A wait that are in front of others'; it reaches only some replicas."""
    await scene.beat_router("A", connected=links)
    for n in range(count):
        await scene.queue.submit("A", entry(f"a{n}", **changes))


async def test_a_router_without_links_stops_nobody(scene: Scene) -> None:
    await scene.start({"r1": WIDE, "r2": WIDE}, ("A", "B"))
    await _wall(scene, ())

    names = {"same": {}, "other": {"tenant": "other"}, "batch": {"request_class": RequestClass.BATCH}}
    answers = {name: await scene.queue.submit("B", entry(name, **changes)) for name, changes in names.items()}

    assert all(answer.grant for answer in answers.values())
    reply = await scene.beat_router("B", positions_of=("same",))
    assert reply.waiting == (0, WALL, 0)
    # With links again it is as if nothing had happened.
    mail = (await scene.beat_router("A")).mail
    assert [grant.request_id for grant in mail.grants] == ["a0", "a1", "a2", "a3", "a4"]


async def test_a_router_that_reaches_some_replicas_leaves_the_others_to_others(scene: Scene) -> None:
    await scene.start({"r1": ONE, "r2": ONE}, ("A", "B"))
    await _wall(scene, ("r2",))

    answers = [await scene.queue.submit("B", entry(f"b{n}")) for n in range(2)]

    assert answers[0].grant.replica_id == "r1"
    mail = await scene.queue.release("B", "b0", answers[0].grant.attempt, Settlement(1))
    assert [(grant.request_id, grant.replica_id) for grant in mail.grants] == [("b1", "r1")]
    # What both reach goes in order.
    await scene.queue.release("A", "a0", "base-a0.1", Settlement(1))
    mail = await scene.queue.collect("A")
    assert [(grant.request_id, grant.replica_id) for grant in mail.grants] == [("a1", "r2")]


async def test_beyond_a_wall_classes_and_tenants_keep_their_order(scene: Scene) -> None:
    await scene.start({"r1": ONE}, ("A", "B"))
    running = (await scene.queue.submit("B", entry("running", tenant="loud"))).grant
    await scene.beat_router("B", started=((running.request_id, running.attempt),))
    await _wall(scene, (), request_class=RequestClass.INTERACTIVE)
    for n in range(3):
        await scene.queue.submit("B", entry(f"batch{n}", request_class=RequestClass.BATCH))
        await scene.queue.submit("B", entry(f"loud{n}", tenant="loud"))
    for n in range(2):
        await scene.queue.submit("B", entry(f"quiet{n}", tenant="quiet"))
    await scene.queue.submit("B", entry("urgent", request_class=RequestClass.INTERACTIVE))

    order, current = [], running
    for _ in range(9):
        (current,) = (await scene.queue.release("B", current.request_id, current.attempt, Settlement(10))).grants
        order.append(current.request_id)

    # As without those in front: that was tried with one of them.
    assert " ".join(order) == "urgent quiet0 batch0 loud0 quiet1 loud1 loud2 batch1 batch2"


async def test_one_call_fills_a_replica_beyond_a_wall(scene: Scene) -> None:
    await scene.start({"r1": WIDE}, ("A", "B"))
    await scene.beat_replica("r1", windows=Windows(0, 10**6, 10**6))
    await _wall(scene, ())
    for n in range(40):
        await scene.queue.submit("B", entry(f"b{n}"))

    await scene.beat_replica("r1")

    assert [grant.request_id for grant in (await scene.queue.collect("B")).grants] == ["b0", "b1", "b2", "b3"]


async def test_the_oldest_and_the_newest_are_found(backend: Backend) -> None:
    """So an urgent request does not wait for everything that its router had before it."""
    scene = Scene(backend.queue(QueueLimits(lookahead=2)), backend.clock)
    await scene.start({"r1": ONE}, ("A", "B"))
    await scene.beat_replica("r1", windows=Windows(0, 10**6, 10**6))
    await _wall(scene, (), 20, request_class=RequestClass.INTERACTIVE)
    for n in range(30):
        await scene.queue.submit("B", entry(f"b{n}"))
    await scene.queue.submit("B", entry("urgent", request_class=RequestClass.INTERACTIVE))

    order = []
    for _ in range(3):
        await scene.beat_replica("r1")
        (grant,) = (await scene.queue.collect("B")).grants
        order.append(grant.request_id)
        await scene.queue.release("B", grant.request_id, grant.attempt, Settlement(1))
        await scene.beat_replica("r1", windows=Windows(0, 10**6, 10**6))

    assert order == ["urgent", "b0", "b1"]


async def test_batch_gives_way_for_whom_a_wall_hides(backend: Backend) -> None:
    scene = Scene(backend.queue(QueueLimits(class_shares=(0.0, 0.0, 0.0))), backend.clock)
    await scene.start({"r1": ONE}, ("A", "B"))
    batch = (await scene.queue.submit("B", entry("batch", request_class=RequestClass.BATCH))).grant
    running = ((batch.request_id, batch.attempt),)
    await scene.beat_router("B", started=running)
    await scene.beat_replica("r1", running=running, produced=(5,))
    await _wall(scene, (), request_class=RequestClass.INTERACTIVE)
    await scene.queue.submit("B", entry("urgent", request_class=RequestClass.INTERACTIVE))

    for _ in range(4):
        scene.clock.advance(1)
        await scene.beat_router("A", connected=())
        await scene.beat_router("B", started=running)
        await scene.beat_replica("r1", running=running, produced=(5,))

    assert [order.kind for order in (await scene.queue.collect("B")).orders] == ["preempt"]


async def test_a_walls_cost_is_bounded(redis_backend: Backend) -> None:
    """Not by its length: what a grant beyond it reads."""
    scene = Scene(redis_backend.queue(), redis_backend.clock)
    await scene.start({"r1": ONE}, ("A", "B"))
    first = (await scene.queue.submit("B", entry("first"))).grant
    await _wall(scene, (), 2000)
    for n in range(100):
        await scene.queue.submit("B", entry(f"b{n}"))
    assert redis_backend.server is not None
    with contextlib.closing(redis_backend.server.client()) as client:
        client.config_resetstat()
        assert (await scene.queue.release("B", "first", first.attempt, Settlement(1))).grants
        stats = client.info("commandstats")

    # 128 of the wall, and 16 at either end of what waits with B.
    assert stats["cmdstat_hget"]["calls"] < 128 + 32 + 20
