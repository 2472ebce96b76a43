"""Batch work gives way to interactive requests that wait for want of room, within limits."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.models import Windows
from cluster.queue.entries import Grant, QueueLimits, Settlement
from penstock.models import RequestClass
from tests.cluster.queue.backends import Backend, Scene, entry

TWO = Windows(2, 10_000, 10**6)


class Floor:
    """Runs batch entries b0, b1, ... on r1 and has an interactive one wait."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.grants: dict[str, Grant] = {}

    async def open(self, prompts: tuple[int, ...] = (10, 10), ran_s: float = 3.0) -> None:
        await self.scene.start({"r1": TWO}, ("A", "B"))
        for i, prompt in enumerate(prompts):
            await self.submit(f"b{i}", RequestClass.BATCH, prompt_tokens=prompt)
        await self.run(ran_s)

    async def submit(self, name: str, kind: RequestClass, **changes: Any) -> None:
        answer = await self.scene.queue.submit("A", entry(name, request_class=kind, **changes))
        if answer.grant:
            self.grants[name] = answer.grant

    async def run(self, seconds: float, produced: dict[str, int] | None = None) -> list[str]:
        """Let time pass with true heartbeats; returns the entries that were told to give way."""
        for _ in range(round(seconds * 2)):
            self.scene.clock.advance(0.5)
            running = [(name, grant.attempt) for name, grant in self.grants.items()]
            tokens = tuple((produced or {}).get(name, 100) for name, _ in running)
            await self.scene.beat_replica("r1", running=tuple(running), produced=tokens)
            for router in ("A", "B"):
                await self.scene.beat_router(router)
        orders = (await self.scene.queue.collect("A")).orders
        return [order.request_id for order in orders if order.kind == "preempt"]

    async def obey(self, name: str) -> list[str]:
        """Requeue what was told to give way; returns who is granted."""
        mail = await self.scene.queue.requeue("A", name, self.grants.pop(name).attempt, Settlement(100))
        self.grants |= {grant.request_id: grant for grant in mail.grants}
        return [grant.request_id for grant in mail.grants]

    async def end(self, name: str) -> list[str]:
        mail = await self.scene.queue.release("A", name, self.grants.pop(name).attempt, Settlement(10))
        self.grants |= {grant.request_id: grant for grant in mail.grants}
        return [grant.request_id for grant in mail.grants]


@pytest.fixture
def floor(scene: Scene) -> Floor:
    return Floor(scene)


async def test_batch_gives_way_and_comes_back_first(floor: Floor) -> None:
    await floor.open()
    await floor.submit("b2", RequestClass.BATCH)
    await floor.submit("chat", RequestClass.INTERACTIVE)
    assert await floor.run(1.0) == ["b0"]

    assert await floor.obey("b0") == ["chat"]
    # Its turn comes before b2, which waited in its tenant's list.
    assert await floor.end("chat") == ["b0"]


async def test_of_what_gives_way_no_more_comes_back_first_than_the_share_of_its_class(floor: Floor) -> None:
    """An attempt that goes on is charged nothing, but it serves its class: otherwise the first short chat would leave
    batch below its share, and batch would take back all the room that it makes.
    """
    await floor.scene.start({"r1": Windows(4, 10_000, 10**6)}, ("A", "B"))
    for number in range(5):
        await floor.submit(f"b{number}", RequestClass.BATCH)
    await floor.run(3.0)
    for number in range(3):
        await floor.submit(f"chat{number}", RequestClass.INTERACTIVE)
    granted = [name for told in await floor.run(1.0) for name in await floor.obey(told)]
    assert ["chat0", "chat1"] == [name for name in granted if name.startswith("chat")]
    # The one that came back for batch's share takes no more: the next one gives way a quantum later at most.
    granted = [name for told in await floor.run(3.0) for name in await floor.obey(told)]
    assert ["chat2"] == granted


async def test_what_a_class_gets_alone_pays_what_it_is_owed(floor: Floor) -> None:
    """Batch that has all slots is not below its share, so it gives way."""
    await floor.scene.start({"r1": TWO}, ("A", "B"))
    for name in ("s0", "s1"):
        await floor.submit(name, RequestClass.STANDARD)
    for number in range(2):
        await floor.submit(f"b{number}", RequestClass.BATCH)
    await floor.submit("s2", RequestClass.STANDARD)
    # s2 is served while batch waits, which leaves it below its share. Then batch alone is left.
    assert ["s2", "b0", "b1"] == [*await floor.end("s0"), *await floor.end("s1"), *await floor.end("s2")]
    await floor.run(3.0)
    await floor.submit("chat", RequestClass.INTERACTIVE)
    assert ["b0"] == await floor.run(1.0)
    assert ["chat"] == await floor.obey("b0")


async def test_the_least_work_to_redo_goes_first(floor: Floor) -> None:
    await floor.open(prompts=(10, 500))
    await floor.submit("chat", RequestClass.INTERACTIVE)
    assert await floor.run(1.0, produced={"b0": 900, "b1": 20}) == ["b1"]


async def test_what_could_not_go_on_elsewhere_stays(floor: Floor) -> None:
    await floor.open()
    await floor.submit("chat", RequestClass.INTERACTIVE)
    assert await floor.run(1.0, produced={"b0": -1, "b1": -1}) == []
    assert await floor.run(1.0, produced={"b0": -1, "b1": 900}) == ["b1"]
    assert await floor.obey("b1") == ["chat"]


async def test_nobody_gives_way_before_the_wait_is_long(floor: Floor) -> None:
    await floor.open()
    await floor.submit("chat", RequestClass.INTERACTIVE)
    # The beat half a second later is the first that counts; without time there is no order.
    assert await floor.run(0.0) == []
    assert await floor.run(0.5) == ["b0"]


async def test_nobody_gives_way_in_its_first_quantum(floor: Floor) -> None:
    await floor.open(ran_s=0.5)
    await floor.submit("chat", RequestClass.INTERACTIVE)
    assert await floor.run(1.0) == []
    assert await floor.run(1.0) == ["b0"]


async def test_nobody_gives_way_more_than_twice(backend: Backend) -> None:
    floor = Floor(Scene(backend.queue(QueueLimits(class_shares=(0, 0, 0))), backend.clock))
    await floor.open(prompts=(10,))
    for turn in range(3):
        await floor.submit(f"long{turn}", RequestClass.STANDARD)
        await floor.submit(f"chat{turn}", RequestClass.INTERACTIVE)
        told = await floor.run(3.0)
        if turn == 2:
            assert told == []
            return
        assert told == ["b0"]
        assert await floor.obey("b0") == [f"chat{turn}"]
        await floor.end(f"long{turn}")
        await floor.end(f"chat{turn}")
        assert "b0" in floor.grants


async def test_batch_keeps_its_reserved_share(backend: Backend) -> None:
    """With a share of all tokens nothing that competed for them gives way."""
    floor = Floor(Scene(backend.queue(QueueLimits(class_shares=(0, 0, 1.0))), backend.clock))
    await floor.open()
    await floor.submit("chat", RequestClass.INTERACTIVE)
    await floor.submit("b2", RequestClass.BATCH)
    # One round in which the classes compete: the chat is served, so batch is behind its share.
    assert ["chat"] == await floor.end("b0")
    await floor.submit("chat2", RequestClass.INTERACTIVE)
    await floor.submit("chat3", RequestClass.INTERACTIVE)
    assert await floor.run(4.0) == []


async def test_only_as_many_as_are_needed_give_way(floor: Floor) -> None:
    await floor.open()
    await floor.submit("chat", RequestClass.INTERACTIVE)
    assert await floor.run(4.0) == ["b0"]
    await floor.submit("chat2", RequestClass.INTERACTIVE)
    assert await floor.run(1.0) == ["b0", "b1"]


async def test_standard_work_neither_gives_way_nor_is_given_way(floor: Floor) -> None:
    await floor.scene.start({"r1": TWO}, ("A", "B"))
    await floor.submit("s0", RequestClass.STANDARD)
    await floor.submit("b0", RequestClass.BATCH)
    await floor.submit("s1", RequestClass.STANDARD)
    assert await floor.run(4.0) == []
    await floor.submit("chat", RequestClass.INTERACTIVE)
    await floor.submit("chat2", RequestClass.INTERACTIVE)
    assert await floor.run(4.0) == ["b0"]


async def test_nobody_gives_way_for_what_would_not_fit_even_then(floor: Floor) -> None:
    await floor.open()
    floor.grants.pop("b1")
    await floor.submit("huge", RequestClass.INTERACTIVE, kv_tokens=20_000)
    assert await floor.run(4.0) == []


async def test_a_cancel_takes_the_place_of_the_order(floor: Floor) -> None:
    await floor.open()
    await floor.submit("chat", RequestClass.INTERACTIVE)
    assert await floor.run(1.0) == ["b0"]
    await floor.scene.queue.cancel("B", "acme", "b0")
    assert [(o.request_id, o.kind) for o in (await floor.scene.queue.collect("A")).orders] == [("b0", "cancel")]
    assert await floor.end("b0") == ["chat"]


async def test_one_that_ends_by_itself_needs_no_answer(floor: Floor) -> None:
    await floor.open()
    await floor.submit("chat", RequestClass.INTERACTIVE)
    assert await floor.run(1.0) == ["b0"]
    assert await floor.end("b0") == ["chat"]
    assert await floor.run(1.0) == []
