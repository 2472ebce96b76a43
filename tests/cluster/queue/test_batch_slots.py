"""A replica leaves batch work so many slots, so that interactive requests to come find room at once."""

from __future__ import annotations

from cluster.models import Windows
from cluster.queue.entries import QueueLimits, Settlement
from penstock.models import RequestClass
from tests.cluster.queue.backends import Backend, Scene, entry

ROOM = Windows(sequences=4, kv_tokens=10**6, prefill_tokens=10**6)
NO_SHARES = QueueLimits(class_shares=(0.0, 0.0, 0.0), preempt_after_ms=0)


async def started(backend: Backend, limits: QueueLimits, slots: int | None) -> Scene:
    scene = Scene(backend.queue(limits), backend.clock)
    await scene.start({"r1": ROOM})
    await scene.beat_replica("r1", batch_slots=slots)
    return scene


async def submit(scene: Scene, name: str, request_class: RequestClass = RequestClass.BATCH) -> bool:
    submitted = await scene.queue.submit("A", entry(name, request_class=request_class))
    return submitted.grant is not None


async def test_batch_work_leaves_the_reserve_alone(backend: Backend) -> None:
    scene = await started(backend, NO_SHARES, 2)

    assert [True, True, False] == [await submit(scene, f"b{n}") for n in range(3)]
    # Those for whom it is kept find it, past batch work that waits.
    assert await submit(scene, "i1", RequestClass.INTERACTIVE)
    assert await submit(scene, "s1", RequestClass.STANDARD)
    assert not await submit(scene, "i2", RequestClass.INTERACTIVE)


async def test_a_slot_that_batch_work_gives_back_goes_to_batch_work(backend: Backend) -> None:
    scene = await started(backend, NO_SHARES, 1)
    first = await scene.queue.submit("A", entry("b1", request_class=RequestClass.BATCH))
    assert not await submit(scene, "b2")
    mail = await scene.queue.release("A", "b1", first.grant.attempt, Settlement(1))

    assert ["b2"] == [grant.request_id for grant in mail.grants]


async def test_the_bound_moves_with_heartbeats(backend: Backend) -> None:
    scene = await started(backend, NO_SHARES, 0)
    assert not await submit(scene, "b1")
    assert not await submit(scene, "b2")
    await scene.beat_replica("r1", batch_slots=1)
    assert 1 == len((await scene.queue.collect("A")).grants)
    await scene.beat_replica("r1", batch_slots=None)

    assert 2 == len((await scene.queue.collect("A")).grants)


async def test_a_reserved_share_is_kept_in_spite_of_it(backend: Backend) -> None:
    limits = QueueLimits(class_shares=(0.0, 0.0, 0.5), preempt_after_ms=0)
    scene = await started(backend, limits, 0)
    running = [await scene.queue.submit("A", entry(f"i{n}", request_class=RequestClass.INTERACTIVE)) for n in range(4)]
    for n in range(4, 10):
        await submit(scene, f"i{n}", RequestClass.INTERACTIVE)
        await submit(scene, f"b{n}")
    granted: list[str] = []
    for n in range(4):
        mail = await scene.queue.release("A", f"i{n}", running[n].grant.attempt, Settlement(10))
        granted += [grant.request_id for grant in mail.grants]

    assert {"i", "b"} == {name[0] for name in granted}
