"""Calls that meet a move between cells, and cells that are away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.errors import QueueFullError, QueueUnavailableError, QuotaExceededError
from cluster.queue.cells.beats import newest
from cluster.queue.cells.choice import home
from cluster.queue.cells.layout import Layout
from cluster.queue.cells.queue import CellQueue
from cluster.queue.cells.seen import CellsSeen
from cluster.queue.entries import Mark, Quota, Settlement
from cluster.queue.heartbeats import RouterBeat
from cluster.redis.keys import pool_key
from tests.cluster.queue.backends import POOL, entry, turns
from tests.cluster.queue.cells.scene import CellScene
from tests.cluster.queue.cells.test_promises import opened
from tests.support.waiting import until


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


@pytest.mark.parametrize(("cell", "call"), [(0, "read_orders"), (0, "cells"), (1, "copy_orders")])
async def test_mail_does_not_wait_for_the_orders_of_a_server_that_hangs(
    full: CellScene, monkeypatch: pytest.MonkeyPatch, cell: int, call: str
) -> None:
    """It hung after it had answered the heartbeat."""
    queue, answers = full.routers_queues["A"], asyncio.Event()
    full.store.execute("HSET", pool_key(POOL, "control"), "point", "point")

    async def hang(name: str) -> None:
        if name == call:
            await answers.wait()

    watch(queue)[cell].before = hang
    queue.seen.layout.lost()
    # A heartbeat that waited, or waited again, would not return before the test's time is over.
    for wait_s in (0.01, 3600.0, 3600.0):
        monkeypatch.setattr("cluster.queue.cells.beats.WAIT_S", wait_s)
        beat = asyncio.ensure_future(queue.heartbeat_router(RouterBeat("A", ())))
        await until(beat.done)
        assert set() == queue.seen.away
    answers.set()
    await turns(10)
    for _ in range(2):
        await queue.heartbeat_router(RouterBeat("A", ()))
    assert b"point" == (await full.own[1].heartbeat_router(RouterBeat("B", ()))).point
    assert not queue.seen.layout.is_due


async def test_a_cell_that_refuses_at_once_makes_no_other_one_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an answer shortens the time that the others have."""
    scene = await opened(2)
    queue = scene.routers_queues["A"]
    slow, gone = watch(queue)
    gone.away, answers = True, asyncio.Event()

    async def take_long(name: str) -> None:
        if name == "heartbeat_router":
            await answers.wait()

    slow.before = take_long
    monkeypatch.setattr("cluster.queue.cells.beats.WAIT_S", 0.0)
    for known in (frozenset[int](), frozenset({1})):
        assert known == queue.seen.away
        beat = asyncio.ensure_future(queue.heartbeat_router(RouterBeat("A", ())))
        await turns(20)
        answers.set()
        assert ("A", "B") == (await beat).routers
        assert {1} == queue.seen.away
        answers.clear()
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


async def test_calls_about_the_whole_pool_fail_while_all_cells_are_away() -> None:
    """An empty answer would say that nothing waits, or that all routers turn a content away."""
    scene = await opened(2)
    queue = scene.routers_queues["A"]
    cells = watch(queue)
    for cell in cells:
        cell.away = True
    with pytest.raises(QueueUnavailableError):
        await queue.heartbeat_router(RouterBeat("A", ()))
    mark = Mark(b"content", "incident", 1000)
    for call in (queue.line(), queue.quarantine("A", mark), queue.quarantine("A"), queue.collect("A")):
        with pytest.raises(QueueUnavailableError):
            await call
    for cell in cells:
        cell.away = False
    assert 1 == len((await queue.quarantine("A", mark)).marks)
    await scene.close()


async def test_a_mark_reaches_all_routers_though_a_cell_fails(full: CellScene) -> None:
    a, b = full.routers_queues["A"], full.routers_queues["B"]
    watch(a)[1].away = True
    assert 1 == len((await a.quarantine("A", Mark(b"content", "incident", 1000))).marks)
    known = b.seen.marks()
    assert known != (await b.heartbeat_router(RouterBeat("B", ()))).marks
    assert [b"content"] == [mark.content for mark in (await b.quarantine("B")).marks]


async def test_the_line_is_that_of_the_cells_that_answer(full: CellScene) -> None:
    queue = full.routers_queues["A"]
    watch(queue)[1].away = True
    line = await queue.line(["x"])
    assert (1, ["x"]) == (sum(line.waiting), list(line.places))


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


async def test_a_request_that_was_let_in_finds_room_for_all_its_choices() -> None:
    """The pool fills up meanwhile. Its first choice has taken the quota of all."""
    scene = await opened(2, replicas=2, max_waiting=4)
    quota = Quota(requests_per_minute=3)
    await scene.queue.submit("A", entry("late/0", tenant="beta", quota=quota, choices=2))
    number = 0
    while scene.routers_queues["A"].seen.waiting < 4:
        await scene.queue.submit("B", entry(f"q{number}"))
        await scene.beat()
        number += 1
    await scene.queue.submit("A", entry("late/1", tenant="beta", quota=quota, choices=0))
    with pytest.raises(QueueFullError):
        await scene.queue.submit("A", entry("new", tenant="beta", quota=quota))
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


async def test_an_adoption_asks_cells_that_are_known_to_be_away_last() -> None:
    """Each may take the time of a call to say nothing, and what goes on in the others must not wait so long."""
    scene = await opened(4)
    await scene.routers_queues["A"].submit_to(2, "A", entry("x"))
    queue, asked = scene.routers_queues["B"], list[int]()
    for number, cell in enumerate(watch(queue, 4)):

        async def note(_name: str, number: int = number) -> None:
            asked.append(number)

        cell.before, cell.away = note, number in {0, 1}
    queue.seen.lost(frozenset({0, 1}))
    assert await queue.adopt("B", "acme", "x") is not None
    assert [2] == asked
    asked.clear()
    with pytest.raises(QueueUnavailableError):
        await queue.adopt("B", "acme", "unknown")
    assert [2, 3, 2, 3, 0, 1] == asked
    await scene.close()


async def test_an_adoption_finds_a_request_in_a_cell_that_is_back(full: CellScene) -> None:
    """No heartbeat has told its router yet."""
    full.routers_queues["B"].seen.lost(frozenset({0}))
    assert await full.queue.adopt("B", "acme", "x") is not None


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
async def test_a_cancel_waits_for_no_cell_that_is_known_to_be_away(full: CellScene, by_key: bool) -> None:
    await full.routers_queues["A"].submit("A", entry("k", client_key="key", digest="d"))
    asked, queue = list[int](), full.routers_queues["B"]
    away = 1 - home("acme", 2)
    for number, cell in enumerate(watch(queue)):

        async def note(_name: str, number: int = number) -> None:
            asked.append(number)

        cell.before, cell.away = note, number == away
    queue.seen.lost(frozenset({away}))
    assert "k" == await queue.cancel("B", "acme", "key" if by_key else "k", by_key=by_key)
    assert {1 - away} == set(asked)
    with pytest.raises(QueueUnavailableError):
        await queue.cancel("B", "acme", "unknown")
    assert 1 == asked.count(away)


@pytest.mark.parametrize("known", [False, True])
async def test_a_key_is_found_in_a_cell_that_answers_while_a_former_home_is_away(known: bool) -> None:
    """The number of cells has changed, so keys are looked for in all cells."""
    scene = await opened(2, replicas=2)
    await scene.queue.submit("A", entry("first", client_key="key", digest="d"))
    for layout in scene.layouts.values():
        layout.change(3)
    place, queue = home("acme", 2), scene.routers_queues["B"]
    for number, cell in enumerate(watch(queue, 3)):
        cell.away = number != place
    if known:
        queue.seen.lost(frozenset({0, 1, 2} - {place}))
    found = await queue.find_key("acme", "key", "again", "d")
    assert "first" == (found and found.request_id)
    answer = await queue.submit("B", entry("again", client_key="key", digest="d"))
    assert "first" == (answer.known and answer.known.request_id)
    assert await queue.await_key("acme", "key", "first", note=True)
    assert await queue.finish_key("B", "acme", "key", "first", b"result")
    with pytest.raises(QueueUnavailableError):
        await queue.find_key("acme", "unknown", "again", "d")
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


async def test_a_router_that_starts_while_cell_0_is_away_serves_by_the_others_and_takes_it_up_later() -> None:
    scene = await opened(2, replicas=2)
    layout = Layout(2, clock=scene.clock.monotonic)
    late = CellQueue(POOL, scene.open_cell, CellsSeen(layout))
    first = watch(late)[0]
    first.away, layout.sure = True, False
    # The registry may know another number than its settings.
    with pytest.raises(QueueUnavailableError):
        await late.heartbeat_router(RouterBeat("late", ()))
    layout.confirm()
    asked = list[str]()

    async def note(name: str) -> None:
        asked.append(name)

    first.before = note
    for _ in range(3):
        reply = await late.heartbeat_router(RouterBeat("late", ("r1",)))
        assert "late" in reply.routers
    # Nothing waits for it but its own heartbeat.
    assert 1 == asked.count("cells")
    submitted = await late.submit("late", entry("q"))
    assert submitted.grant is not None
    assert "r1" == submitted.grant.replica_id
    first.away = False
    for _ in range(2):
        await late.heartbeat_router(RouterBeat("late", ("r0", "r1")))
    assert (set(), True, 2) == (late.seen.away, layout.known, len(late.seen.views()))
    await late.close()
    await scene.close()


async def test_a_cell_that_takes_its_time_gets_every_heartbeat_and_is_not_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers after the time that a heartbeat waits for it, and before the next one."""
    scene = await opened(2)
    queue, told = scene.routers_queues["A"], list[str]()
    slow = watch(queue)[1]
    answers = asyncio.Event()

    async def take_long(name: str) -> None:
        if name == "heartbeat_router":
            told.append(name)
            await answers.wait()

    slow.before = take_long
    clock = 0.0
    monkeypatch.setattr("cluster.queue.cells.beats.WAIT_S", 0.01)
    monkeypatch.setattr("cluster.queue.cells.beats.time", SimpleNamespace(monotonic=lambda: clock))
    away = list[frozenset[int]]()
    for _ in range(5):
        await queue.heartbeat_router(RouterBeat("A", ()))
        away.append(queue.seen.away)
        clock += 0.7
        answers.set()
        await turns(10)
        answers.clear()
        # No heartbeat waits for it from now on.
        monkeypatch.setattr("cluster.queue.cells.beats.WAIT_S", 0.5)
    assert ([{1}, set(), set(), set(), set()], 5) == (away, len(told))
    # Once it is quick again its answer is waited for, and comes with the heartbeat that asked for it.
    slow.before = None
    for _ in range(2):
        await queue.heartbeat_router(RouterBeat("A", ()))
    monkeypatch.setattr("cluster.queue.cells.beats.WAIT_S", 3600.0)
    slow.before = lambda _: turns(20)
    heard = list[int]()
    monkeypatch.setattr(queue.seen, "heard", lambda cell, _: heard.append(cell))
    await queue.heartbeat_router(RouterBeat("A", ()))
    assert {0, 1} == set(heard)
    await scene.close()


async def test_where_all_other_cells_refuse_one_that_takes_its_time_is_waited_for() -> None:
    """Its answer is the only one, so the heartbeat would fail without it."""
    scene = await opened(2)
    queue = scene.routers_queues["A"]
    cells = watch(queue)

    async def take_long(name: str) -> None:
        if name == "heartbeat_router":
            await turns(20)

    await queue.heartbeat_router(RouterBeat("A", ()))
    # Its last answer took longer than any is waited for behind another one's, and came in time all the same.
    queue._beats._slow.add(1)
    cells[1].before = take_long
    cells[0].away = True
    await queue.heartbeat_router(RouterBeat("A", ()))
    assert {0} == queue.seen.away
    await scene.close()
