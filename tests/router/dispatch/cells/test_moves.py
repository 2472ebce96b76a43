"""Which waiting choices a router moves to another cell, and what may come in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from cluster.clock import ManualClock
from cluster.errors import QueueUnavailableError
from cluster.lifecycle import TaskOwner
from cluster.queue.cells.choice import CellView
from cluster.queue.cells.ids import EntryCells
from cluster.queue.entries import Grant, Mail, Quota, Submitted
from cluster.queue.redis.queue import RedisQueue
from cluster.redis.in_process.server import InProcessRedis
from cluster.settings import QueueSettings
from router.dispatch.cells.moves import CellMoves
from router.dispatch.cells.pool_cells import PoolCells
from router.generation.choice_state import ChoiceState
from tests.cluster.queue.backends import entry

OTHERS = Mail((Grant("other", "o.1", "r0"),))


class Desk:
    """A router's pool with a full cell 0 and an empty cell 1."""

    def __init__(self) -> None:
        self.choices: dict[str, Any] = {}
        self.told: list[Any] = []
        self.held = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self.failure: Exception | None = None
        self.granted = True
        self.stays = False
        entries = EntryCells()
        views = [CellView(0, 5, 8, 8), CellView(1, 0, 0, 8)]
        self.layout = SimpleNamespace(span=2)
        seen = SimpleNamespace(views=lambda: views, entries=entries)
        cells = SimpleNamespace(layout=self.layout, seen=seen, queue=SimpleNamespace(move=self.move))
        table = _Table(self)
        self.owner = TaskOwner("test")
        context = SimpleNamespace(choices=table, owner=self.owner, router_id="A", name="demo")
        mailbox = SimpleNamespace(deliver=self.told.append, granted=self.start)
        releases = SimpleNamespace(withdraw=lambda name, used: self.told.append(("withdraw", name, used)))
        resubmit = SimpleNamespace(run_id="run")
        adoption = SimpleNamespace(held_open=self.held_open)
        self.entries = entries
        self.moves = CellMoves(context, cells, adoption, mailbox, releases, resubmit)  # type: ignore[arg-type]

    def add(self, name: str, at: float = 0.0, cell: int = 0, **changes: Any) -> Any:
        asked = entry(name, **{key: changes.pop(key) for key in ("client_key", "quota") if key in changes})
        wait = SimpleNamespace(
            submitted_at=at, waited_s=changes.pop("waited_s", None), position=9, entry_now=lambda: asked
        )
        fields = {"entry": asked, "wait": wait, "state": ChoiceState.WAITING, "attempt": "", "run_id": "run", **changes}
        self.choices[name] = SimpleNamespace(**fields)
        self.entries.put(name, cell)
        return self.choices[name]

    def waiting(self) -> list[Any]:
        return [choice for choice in self.choices.values() if choice.state is ChoiceState.WAITING]

    @contextmanager
    def held_open(self, _name: str) -> Any:
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1

    async def move(self, _router: str, name: str, _entry: Any, target: int) -> tuple[Mail, Submitted] | None:
        assert 1 == self.held
        await asyncio.sleep(0)
        self.meanwhile()
        if self.failure is not None:
            raise self.failure
        if self.stays:
            return None
        self.entries.put(name, target)
        return OTHERS, Submitted(Grant(name, f"{name}.1", "r1") if self.granted else None, 0 if self.granted else 4)

    def start(self, grant: Grant) -> None:
        assert 0 == self.held
        self.told.append(grant.request_id)

    async def look(self) -> None:
        self.moves.look()
        while len(self.owner):
            await self.owner.wait_any(timeout=1.0)


class _Table:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def waiting(self) -> list[Any]:
        return self._desk.waiting()

    def get(self, name: str) -> Any:
        return self._desk.choices.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._desk.choices


async def test_the_oldest_go_first_and_start_where_there_is_room() -> None:
    desk = Desk()
    for name, at in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        desk.add(name, at)
    await desk.look()
    assert [OTHERS, "a", OTHERS, "b", OTHERS, "c"] == desk.told
    assert 3 == desk.moves.moved


async def test_a_choice_that_finds_a_line_has_its_new_place() -> None:
    desk = Desk()
    desk.granted = False
    choice = desk.add("a")
    await desk.look()
    assert 4 == choice.wait.position
    assert [OTHERS] == desk.told


async def test_what_is_pinned_or_has_begun_or_is_elsewhere_stays() -> None:
    desk = Desk()
    desk.add("key", client_key="key")
    desk.add("quota", quota=Quota(requests_per_minute=9))
    desk.add("output", waited_s=1.0)
    desk.add("granted", attempt="g.1")
    desk.add("submitting", run_id="")
    desk.add("elsewhere", cell=1)
    desk.add("held", state=ChoiceState.HELD)
    await desk.look()
    assert [] == desk.told


async def test_one_cell_is_not_looked_at() -> None:
    desk = Desk()
    desk.add("a")
    desk.layout.span = 1
    await desk.look()
    assert [] == desk.told


async def test_a_choice_that_is_cancelled_between_two_cells_leaves_the_new_one() -> None:
    desk = Desk()
    desk.add("a")
    desk.meanwhile = lambda: desk.choices.pop("a", None)
    await desk.look()
    assert [OTHERS, ("withdraw", "a", None)] == desk.told


async def test_a_cell_that_does_not_answer_ends_the_moves_and_later_ones_are_tried() -> None:
    desk = Desk()
    desk.add("a")
    desk.failure = QueueUnavailableError("away")
    await desk.look()
    assert [] == desk.told
    desk.failure = None
    await desk.look()
    assert [OTHERS, "a"] == desk.told


async def test_a_choice_that_stays_where_it_is_starts_nothing() -> None:
    desk = Desk()
    choice = desk.add("a")
    desk.stays = True
    await desk.look()
    assert [] == desk.told
    assert (0, 9) == (desk.moves.moved, choice.wait.position)


async def test_a_choice_that_is_put_in_line_again_does_not_move_meanwhile() -> None:
    """The store has changed, and its submission may be on its way to its cell."""
    desk = Desk()
    desk.add("a", run_id="before")
    await desk.look()
    assert [] == desk.told


def test_requests_of_the_only_cell_are_known_to_be_there_when_there_are_more() -> None:
    cells = PoolCells("demo", 1, QueueSettings(), lambda name: RedisQueue(InProcessRedis(ManualClock()), name))
    cells.change(1, ["a"])
    assert None is cells.seen.entries.get("a")
    cells.change(3, ["a", "b"])
    assert [0, 0, None] == [cells.seen.entries.get(name) for name in ("a", "b", "new")]


def test_a_key_is_looked_for_in_former_homes_until_the_result_of_a_long_request_is_gone() -> None:
    settings = QueueSettings(result_s=600.0, attach_grace_s=5.0)
    cells = PoolCells("demo", 2, settings, lambda name: RedisQueue(InProcessRedis(ManualClock()), name))
    clock = ManualClock()
    cells.layout._clock = clock.monotonic
    cells.change(3, [])
    clock.advance(3600.0 + 5.0 + 599.0)
    assert 2 == len(cells.queue._homes.former("acme"))
    clock.advance(2.0)
    assert [] == cells.queue._homes.former("acme")
