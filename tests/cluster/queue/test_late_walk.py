"""Late requests among others: behind one that can't run here, of other tenants, and where batch work gives way."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.models import Windows
from cluster.queue.entries import Grant, QueueEntry, Settlement
from penstock.models import RequestClass
from tests.cluster.queue.backends import Scene, entry

ONE = Windows(sequences=1, kv_tokens=1000, prefill_tokens=1000)
LOOKAHEAD = 16
USED = Settlement(10)
HOUR_MS = 3_600_000


async def wait(scene: Scene, seconds: float, running: Sequence[Grant]) -> None:
    """Let time pass while slots stay taken."""
    for _ in range(round(seconds * 2)):
        scene.clock.advance(0.5)
        for name in scene.replicas:
            mine = tuple((each.request_id, each.attempt) for each in running if each.replica_id == name)
            await scene.beat_replica(name, running=mine)
        await scene.beat_router("A", started=tuple((each.request_id, each.attempt) for each in running))


async def passed_by(scene: Scene, grant: Grant, name: str) -> int:
    """Serve a hundred that come and are in time; return how many of them came before `name`."""
    for number in range(100):
        await scene.queue.submit("A", entry(f"new{number}", late_after_ms=HOUR_MS))
    for number in range(101):
        (grant,) = (await scene.queue.release("A", grant.request_id, grant.attempt, USED)).grants
        if grant.request_id == name:
            return number
    raise AssertionError(f"{name} was never served")


async def test_one_that_fits_no_replica_does_not_hold_up_the_other_late_ones(scene: Scene) -> None:
    await scene.start({"r1": ONE})
    grant = (await scene.queue.submit("A", entry("q0"))).grant
    await scene.queue.submit("A", entry("big", kv_tokens=5000, late_after_ms=1000))
    await scene.queue.submit("A", entry("small", late_after_ms=1000))
    await wait(scene, 2, [grant])

    assert await passed_by(scene, grant, "small") == LOOKAHEAD


async def test_one_that_waits_for_another_replica_does_not_either(scene: Scene) -> None:
    await scene.start({"r1": ONE, "r2": Windows(sequences=1, kv_tokens=9000, prefill_tokens=1000)})
    grants = [(await scene.queue.submit("A", entry(f"q{number}"))).grant for number in range(2)]
    await scene.queue.submit("A", entry("big", kv_tokens=5000, late_after_ms=1000))
    await scene.queue.submit("A", entry("small", late_after_ms=1000))
    await wait(scene, 2, grants)
    on_small = next(each for each in grants if each.replica_id == "r1")

    assert await passed_by(scene, on_small, "small") == LOOKAHEAD


async def test_one_sequence_of_batch_work_gives_way_to_a_late_request(scene: Scene) -> None:
    """It was passed often enough to come first, and is in its place in line too."""
    await scene.start({"r1": Windows(sequences=3, kv_tokens=1000, prefill_tokens=1000)})
    batch = [
        (await scene.queue.submit("A", entry(f"b{number}", request_class=RequestClass.BATCH))).grant
        for number in range(2)
    ]
    grant = (await scene.queue.submit("A", interactive("q0"))).grant
    await scene.queue.submit("A", interactive("old", late_after_ms=1000))
    await wait(scene, 2, [*batch, grant])
    for number in range(LOOKAHEAD):
        await scene.queue.submit("A", interactive(f"new{number}", late_after_ms=HOUR_MS))
        (grant,) = (await scene.queue.release("A", grant.request_id, grant.attempt, USED)).grants
        assert grant.request_id == f"new{number}"

    running = tuple((each.request_id, each.attempt) for each in (*batch, grant))
    scene.clock.advance(0.5)
    await scene.beat_replica("r1", running=running, produced=(5, 5, 5))
    orders = (await scene.beat_router("A", started=running)).mail.orders

    assert ["preempt"] == [each.kind for each in orders]


def interactive(name: str, late_after_ms: int = 0) -> QueueEntry:
    return entry(name, request_class=RequestClass.INTERACTIVE, late_after_ms=late_after_ms)


async def test_a_late_request_of_another_tenant_does_not_end_the_look_for_a_warm_cache(scene: Scene) -> None:
    await scene.start({"r1": ONE, "r2": ONE})
    grants = [(await scene.queue.submit("A", entry(f"q{number}", tenant="other"))).grant for number in range(2)]
    await scene.queue.submit("A", entry("late", tenant="beta", late_after_ms=1000))
    await scene.queue.submit("A", entry("placeholder"))
    await wait(scene, 2, grants)
    await scene.queue.submit("A", entry("cold", preferred_replicas=("r2",)))
    await scene.queue.submit("A", entry("warm", preferred_replicas=("r1",)))
    await scene.queue.withdraw("A", "placeholder", None)
    grant = next(each for each in grants if each.replica_id == "r1")

    (following,) = (await scene.queue.release("A", grant.request_id, grant.attempt, USED)).grants
    assert following.request_id == "warm"


async def test_late_ones_keep_their_order_when_an_older_one_joins_them(scene: Scene) -> None:
    await scene.start({"r1": ONE, "r2": ONE})
    grants = [(await scene.queue.submit("A", entry(f"q{number}"))).grant for number in range(2)]
    grant, other = sorted(grants, key=lambda each: each.replica_id)
    await scene.queue.submit("A", entry("fits_nowhere", kv_tokens=5000))
    await scene.queue.submit("A", entry("older", late_after_ms=3000))
    for name in ("late1", "late2"):
        await scene.queue.submit("A", entry(name, late_after_ms=700))
    await wait(scene, 1, [grant, other])
    # The look for it finds the two late ones.
    await scene.queue.submit("A", entry("warm", preferred_replicas=("r1",)))
    (grant,) = (await scene.queue.release("A", grant.request_id, grant.attempt, USED)).grants
    order = [grant.request_id]
    await wait(scene, 3, [grant, other])
    for _ in range(3):
        (grant,) = (await scene.queue.release("A", grant.request_id, grant.attempt, USED)).grants
        order.append(grant.request_id)

    assert order == ["warm", "older", "late1", "late2"]
