"""What the store has on record as a router's own."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.models import Windows
from cluster.queue.entries import Holding, Settlement, Where
from tests.cluster.queue.backends import Scene, entry

TWO = Windows(2, 10**6, 10**6)


async def everything(queue: Any, router: str, limit: int = 500) -> list[Holding]:
    found, after = list[Holding](), b""
    while True:
        some = await queue.holdings(router, after, limit)
        assert len(some.page) <= limit
        found += some.page
        after = some.last
        if not after:
            return found


@pytest.mark.parametrize("limit", [1, 3, 500])
async def test_every_kind_is_listed_page_by_page(scene: Scene, limit: int) -> None:
    """In the order of the store; another router's, of whatever name, are not among them."""
    await scene.start({"r1": TWO}, ("A", "A2", "B"))
    queue = scene.queue
    runs = (await queue.submit("A", entry("runs"))).grant
    await scene.beat_router("A", started=(("runs", runs.attempt),))
    granted = (await queue.submit("A", entry("granted"))).grant
    for name in ("waits", "behind", "cancelled", "moved"):
        await queue.submit("A", entry(name))
    await queue.submit("A2", entry("other"))
    await queue.cancel("B", "acme", "cancelled")
    await queue.adopt("B", "acme", "moved")

    assert [
        Holding("cancelled", Where.MAIL),
        Holding("moved", Where.MAIL),
        Holding("granted", Where.GRANT, granted.attempt),
        Holding("runs", Where.SLOT, runs.attempt),
        Holding("waits", Where.LINE),
        Holding("behind", Where.LINE),
    ] == await everything(queue, "A", limit)
    assert [Holding("other", Where.LINE)] == await everything(queue, "A2", limit)
    assert [Holding("moved", Where.LINE)] == await everything(queue, "B", limit)
    assert [] == await everything(queue, "C", limit)


async def test_parked_entries_are_in_line_and_who_gives_way_is_in_its_slot_and_the_mail(scene: Scene) -> None:
    await scene.start({"r1": Windows(1, 10**6, 10**6)}, ("A", "B"))
    queue = scene.queue
    grant = (await queue.submit("A", entry("runs"))).grant
    await scene.beat_router("A", started=(("runs", grant.attempt),))
    await queue.submit("A", entry("waits"))
    await queue.cancel("B", "acme", "runs")
    assert [
        Holding("runs", Where.MAIL),
        Holding("runs", Where.SLOT, grant.attempt),
        Holding("waits", Where.LINE),
    ] == await everything(queue, "A")

    running = {"r1": [("runs", grant.attempt)]}
    await scene.pass_time(6, routers=["B"], replicas=["r1"], running=running)
    assert Holding("waits", Where.LINE) in await everything(queue, "A")

    await scene.pass_time(20, routers=["B"], replicas=["r1"], running={"r1": []})
    await queue.release("A", "runs", grant.attempt, Settlement(0))
    assert [] == await everything(queue, "A")
