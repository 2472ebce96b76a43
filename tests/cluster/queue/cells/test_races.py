"""Calls that meet a move between cells, and cells that are away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from cluster.errors import QueueFullError, QueueUnavailableError, QuotaExceededError
from cluster.queue.cells.beats import newest
from cluster.queue.cells.choice import home
from cluster.queue.cells.queue import CellQueue
from cluster.queue.entries import Quota, Settlement
from cluster.queue.heartbeats import RouterBeat
from tests.cluster.queue.backends import entry, turns
from tests.cluster.queue.cells.scene import CellScene
from tests.cluster.queue.cells.test_promises import opened


class WatchedCell:
    """A cell that may be away, with something that is done before its calls."""

    def __init__(self, cell: Any) -> None:
        self._cell = cell
        self.away = False
        self.before: Callable[[str], Awaitable[None]] | None = None
        self.told: list[tuple[tuple[str, str], ...]] = []
        """Started grants of each heartbeat."""

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            if name == "heartbeat_router":
                self.told.append(arguments[0].started)
            if self.before is not None:
                await self.before(name)
            if self.away and name != "close":
                raise QueueUnavailableError("cut off")
            return await getattr(self._cell, name)(*arguments, **named)

        return call


def watch(queue: CellQueue, cells: int = 2) -> list[WatchedCell]:
    """Watch the cells of a router's queue."""
    watched = [WatchedCell(queue.cell(cell)) for cell in range(cells)]
    queue._cells[:] = watched  # type: ignore[assignment]
    return watched


@pytest.fixture
async def full() -> AsyncIterator[CellScene]:
    """Two cells of one replica each; cell 0 has a line in which "x" of router A waits."""
    scene = await opened(2, replicas=2)
    for name in ("a", "b", "x"):
        await scene.routers_queues["A"].submit_to(0, "A", entry(name))
    yield scene
    await scene.close()


async def test_what_was_started_is_told_once_however_many_heartbeats_failed() -> None:
    scene = await opened(2)
    queue = scene.routers_queues["A"]
    cells = watch(queue)
    started = tuple((f"q{number}", f"q{number}.1") for number in range(3))
    for cell in cells:
        cell.away = True
    for _ in range(5):
        with pytest.raises(QueueUnavailableError):
            await queue.heartbeat_router(RouterBeat("A", (), started=started))
    for cell in cells:
        cell.away = False
    await queue.heartbeat_router(RouterBeat("A", (), started=started))
    assert [started] * 2 == [cell.told[-1] for cell in cells]
    await queue.heartbeat_router(RouterBeat("A", ()))
    assert [()] * 2 == [cell.told[-1] for cell in cells]
    await scene.close()


async def test_no_heartbeat_waits_for_a_cell_that_is_known_to_be_away(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = await opened(2)
    queue, answers = scene.routers_queues["A"], asyncio.Event()

    async def hang(name: str) -> None:
        if name == "heartbeat_router":
            await answers.wait()

    watch(queue)[1].before = hang
    monkeypatch.setattr("cluster.queue.cells.beats.WAIT_S", 0.01)
    await queue.heartbeat_router(RouterBeat("A", ()))
    assert {1} == queue.seen.away
    # A heartbeat that waited would not return before the test's time is over.
    monkeypatch.setattr("cluster.queue.cells.beats.WAIT_S", 3600.0)
    await queue.heartbeat_router(RouterBeat("A", ()))
    assert {1} == queue.seen.away
    answers.set()
    await turns(10)
    await queue.heartbeat_router(RouterBeat("A", ()))
    assert set() == queue.seen.away
    await scene.close()


async def test_mail_comes_from_the_cells_that_answer(full: CellScene) -> None:
    """A cell that was cut off a moment ago keeps nothing back of the others."""
    queue = full.routers_queues["A"]
    assert await queue.cancel("B", "acme", "x") == "x"
    cells = watch(queue)
    cells[1].away = True
    assert ["x"] == [order.request_id for order in (await queue.collect("A")).orders]
    cells[0].away = True
    with pytest.raises(QueueUnavailableError):
        await queue.collect("A")


async def test_a_repeat_of_a_key_finds_its_request_in_a_full_pool() -> None:
    scene = await opened(2, replicas=2, max_waiting=4)
    await scene.queue.submit("A", entry("first", client_key="key", digest="d"))
    number = 0
    while scene.routers_queues["B"].seen.waiting < 4:
        await scene.queue.submit("A", entry(f"q{number}"))
        await scene.beat()
        number += 1
    again = await scene.queue.submit("B", entry("again", client_key="key", digest="d"))
    assert again.known is not None
    assert "first" == again.known.request_id
    with pytest.raises(QueueFullError):
        await scene.queue.submit("B", entry("new", client_key="other", digest="d"))
    await scene.close()


async def test_a_request_that_was_cancelled_before_it_moves_stays_cancelled(full: CellScene) -> None:
    assert "x" == await full.queue.cancel("B", "acme", "x")
    assert None is await full.queue.move("A", "x", entry("x"), 1)
    orders = [(order.request_id, order.kind) for order in (await full.queue.collect("A")).orders]
    assert [("x", "cancel")] == orders
    assert [0, 0] == await full.waiting()


async def test_a_request_that_was_adopted_before_it_moves_is_in_one_place(full: CellScene) -> None:
    assert await full.queue.adopt("B", "acme", "x") is not None
    assert None is await full.queue.move("A", "x", entry("x"), 1)
    assert [0] == (await full.places())["x"]


async def test_a_request_that_was_granted_before_it_moves_keeps_its_slot(full: CellScene) -> None:
    assert None is await full.queue.move("A", "a", entry("a"), 1)
    assert [0] == (await full.places())["a"]


async def meet(full: CellScene, call: Callable[[], Awaitable[Any]], name: str) -> Any:
    """Move "x", and make a call of router B that looks at all cells while it is in none. Return the call's answer."""
    looks, moved = asyncio.Event(), asyncio.Event()
    calls = 0

    async def look_again(called: str) -> None:
        nonlocal calls
        calls += called == name
        if calls > 2:
            looks.set()
            await moved.wait()

    async def between(called: str) -> None:
        if called == "submit":
            other.append(asyncio.ensure_future(call()))
            again = asyncio.ensure_future(looks.wait())
            await asyncio.wait([other[0], again], return_when=asyncio.FIRST_COMPLETED)
            again.cancel()

    other: list[asyncio.Future[Any]] = []
    for cell in watch(full.routers_queues["B"]):
        cell.before = look_again
    watch(full.routers_queues["A"])[1].before = between
    assert await full.queue.move("A", "x", entry("x"), 1) is not None
    moved.set()
    return await other[0]


async def test_a_cancel_finds_a_request_that_is_between_two_cells(full: CellScene) -> None:
    assert "x" == await meet(full, lambda: full.queue.cancel("B", "acme", "x"), "cancel")


async def test_an_adoption_finds_a_request_that_is_between_two_cells(full: CellScene) -> None:
    assert await meet(full, lambda: full.queue.adopt("B", "acme", "x"), "adopt") is not None
    assert [1] == (await full.places())["x"]


@pytest.mark.parametrize("by", ["A", "B"])
async def test_a_cancel_is_done_in_the_cells_that_answer(full: CellScene, by: str) -> None:
    watch(full.routers_queues[by])[1].away = True
    assert "x" == await full.queue.cancel(by, "acme", "x")
    with pytest.raises(QueueUnavailableError):
        await full.queue.cancel(by, "acme", "unknown")


async def test_the_cell_of_a_request_is_known_that_was_submitted_during_a_look() -> None:
    """Its submission began before the look, and was carried out after its page."""
    scene = await opened(2)
    queue = scene.routers_queues["A"]

    async def look(called: str) -> None:
        if called == "submit":
            after = b""
            while after := (await queue.holdings("A", after)).last:
                pass

    watch(queue)[1].before = look
    await queue.submit_to(1, "A", entry("x"))
    assert 1 == queue.seen.entries.get("x")
    await scene.close()


@pytest.mark.parametrize("by_key", [False, True])
async def test_the_owner_of_a_request_hears_of_its_cancel_while_a_cell_is_away(full: CellScene, by_key: bool) -> None:
    """It ends the choices in the other cell without an order of it."""
    a, b = full.routers_queues["A"], full.routers_queues["B"]
    named = {"client_key": "key", "digest": "d"} if by_key else {}
    away = 1 - home("acme", 2) if by_key else 1
    await a.submit_to(1 - away, "A", entry("r/0", **named))
    await a.submit_to(away, "A", entry("r/1"))
    watch(b)[away].away = True
    assert "r" == await b.cancel("B", "acme", "key" if by_key else "r", by_key=by_key)
    mail = (await a.heartbeat_router(RouterBeat("A", ()))).mail
    assert [("r/0", "cancel")] == [(order.request_id, order.kind) for order in mail.orders]


async def test_a_budget_holds_while_another_cell_is_away() -> None:
    """What was charged there is known from before."""
    scene = await opened(2, replicas=2)
    other = 1 - home("acme", 2)
    answer = await scene.own[other].submit("A", entry("before"))
    assert answer.grant is not None
    await scene.own[other].release("A", "before", answer.grant.attempt, Settlement(1, requests=1, cost=1.0))
    queue, quota = scene.routers_queues["A"], Quota(cost_per_day=5.0)
    await scene.beat()
    await queue.submit("A", entry("first", quota=quota))
    queue._budgets._known.clear()
    watch(queue)[other].away = True
    with pytest.raises(QueueUnavailableError):
        await queue.submit("A", entry("stranger", tenant=_neighbour("acme"), quota=quota))
    answer = await queue.submit("A", entry("second", quota=quota))
    assert answer.budget is not None
    assert (1.0, 5.0) == (answer.budget.used, answer.budget.limit)
    with pytest.raises(QuotaExceededError):
        await queue.submit("A", entry("third", quota=Quota(cost_per_day=1.0)))
    await scene.close()


def _neighbour(tenant: str) -> str:
    """Return another tenant of the same home."""
    return next(name for number in range(99) if home(name := f"t{number}", 2) == home(tenant, 2))


async def test_a_grant_that_a_heartbeat_brings_does_not_outlive_a_move(full: CellScene) -> None:
    """It waits for its delivery while its entry goes to another cell."""
    queue = full.routers_queues["A"]
    reply = await queue.heartbeat_router(RouterBeat("A", ("r0", "r1")))
    assert {"a", "b"} == {grant.request_id for grant in reply.mail.grants}
    assert reply.mail == newest(reply.mail, queue.seen.entries)
    queue.seen.entries.put("a", 1)
    assert ["b"] == [grant.request_id for grant in newest(reply.mail, queue.seen.entries).grants]
