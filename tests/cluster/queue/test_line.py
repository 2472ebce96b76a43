"""The line by class and tenant, as operators see it."""

from __future__ import annotations

import pytest

from cluster.errors import QuotaExceededError
from cluster.models import Windows
from cluster.queue.entries import Quota, Settlement
from cluster.queue.line import ASKED, Line, PlaceInLine, QuotaUse, SlotHolder, TenantLine
from penstock.models import RequestClass
from tests.cluster.queue.backends import Backend, Scene, entry

ONE = Windows(1, 10**6, 10**6)
S, B = RequestClass.STANDARD, RequestClass.BATCH


async def test_an_empty_pool_has_an_empty_line(scene: Scene) -> None:
    await scene.start({"r1": ONE})

    assert await scene.queue.line() == Line(time_ms=scene.clock.wall_ms())


async def test_each_class_and_tenant_has_its_count_its_oldest_wait_and_its_turn(scene: Scene) -> None:
    """`busy` holds the slot, so its next entry comes after the one of `calm`, although it came first."""
    await scene.start({"r1": ONE})
    await scene.queue.submit("A", entry("runs", tenant="busy"))
    await scene.queue.submit("A", entry("busy-1", tenant="busy"))
    scene.clock.advance(0.25)
    await scene.queue.submit("A", entry("busy-2", tenant="busy"))
    await scene.queue.submit("A", entry("calm-1", tenant="calm", weight=2.0))
    await scene.queue.submit("A", entry("batch-1", tenant="busy", request_class=B))
    scene.clock.advance(0.5)

    line = await scene.queue.line(["busy-2", "calm-1", "runs", "unknown"])

    # One entry is 20 tokens; the newcomer starts at the least settled service.
    assert (
        TenantLine(S, "calm", 1, 500, 0, 2.0),
        TenantLine(S, "busy", 2, 750, 20, 1.0),
        TenantLine(B, "busy", 1, 500, 0, 1.0),
    ) == line.lines
    assert ((0, 3, 1), (0, 2, 1)) == (line.waiting, line.tenants)
    assert ((SlotHolder(S, "busy", 1),), 1) == (line.holders, line.held)
    assert {"busy-2": PlaceInLine(1, 0), "calm-1": PlaceInLine(0, 0)} == line.places


async def test_reading_the_line_changes_nothing(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": ONE})
    for number in range(3):
        await scene.queue.submit("A", entry(f"e{number}", quota=Quota(tokens_per_minute=1000)))
    before = backend.sizes()

    first = await scene.queue.line(["e1"])

    assert first == await scene.queue.line(["e1"])
    assert before == backend.sizes()


async def test_a_tenant_that_used_its_quota_is_shown_though_it_is_in_no_line(scene: Scene) -> None:
    await scene.start({"r1": ONE})
    quota = Quota(tokens_per_minute=40, requests_per_minute=10, concurrency=5)
    for number in range(2):
        await scene.queue.submit("A", entry(f"e{number}", tenant="eager", quota=quota, max_tokens=10))
    with pytest.raises(QuotaExceededError):
        await scene.queue.submit("A", entry("e2", tenant="eager", quota=quota, max_tokens=10))

    assert QuotaUse(40, 40, 2, 10, 2) == (await scene.queue.line()).quotas["eager"]

    scene.clock.advance(30)
    await scene.beat()
    # Half a minute's tokens and requests have drained.
    assert QuotaUse(20, 40, 0, 10, 2) == (await scene.queue.line()).quotas["eager"]


async def test_entries_that_were_passed_over_say_how_often(scene: Scene) -> None:
    await scene.start({"r1": ONE, "r2": ONE})
    first = (await scene.queue.submit("A", entry("runs-1"))).grant
    await scene.queue.submit("A", entry("runs-2"))
    await scene.queue.submit("A", entry("waits"))
    await scene.queue.submit("A", entry("fits", preferred_replicas=(first.replica_id,)))
    await scene.queue.release("A", "runs-1", first.attempt, Settlement(5))

    assert {"waits": PlaceInLine(0, 1)} == (await scene.queue.line(["waits"])).places


async def test_the_work_of_a_report_is_bounded(scene: Scene) -> None:
    """With many tenants those that come next are listed, and the slots' holders are estimated from a part."""
    await scene.start({"r1": Windows(300, 10**6, 10**6)})
    for number in range(300):
        await scene.queue.submit("A", entry(f"runs-{number}", tenant=("half", "other")[number % 2]))
    for number in range(100):
        await scene.queue.submit("A", entry(f"waits-{number}", tenant=f"tenant-{number}"))

    line = await scene.queue.line([f"waits-{number}" for number in range(100)])

    assert (32, (0, 100, 0), ASKED) == (len(line.lines), line.tenants, len(line.places))
    assert 300 == line.held
    assert 300 == pytest.approx(sum(each.slots for each in line.holders), abs=2)
