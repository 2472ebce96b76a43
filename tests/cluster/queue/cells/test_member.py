"""A replica joins a cell, moves between cells, and its time counts once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

import pytest

from cluster.clock import ManualClock
from cluster.errors import QueueUnavailableError
from cluster.models import Windows
from cluster.queue.cells.layout import SETTLE_S
from cluster.queue.cells.member import LEARN_S, LOOK_HEARTBEATS, CellMember, ReplicaCells
from cluster.queue.cells.merge import merge_costs
from cluster.queue.cells.moving import CellLoad
from cluster.queue.cells.names import cell_name
from cluster.queue.entries import Grant, Settlement, Submitted
from cluster.queue.heartbeats import ReplicaBeat, ReplicaTimes, RouterBeat
from cluster.queue.redis.queue import RedisQueue
from cluster.redis.in_process.server import InProcessRedis
from penstock.models import ReplicaState
from tests.cluster.queue.backends import POOL, entry

LEFT_BEATS = round(SETTLE_S + LEARN_S)
"""Heartbeats after which a cell that was given up counts as former."""
WINDOWS = Windows(sequences=2, kv_tokens=10**6, prefill_tokens=10**6)


class Away(RedisQueue):
    """A cell that may be cut off."""

    down: bool = False

    async def heartbeat_replica(self, beat: ReplicaBeat):  # type: ignore[no-untyped-def]
        if self.down:
            raise QueueUnavailableError("cut off")
        return await super().heartbeat_replica(beat)

    async def observe(self):  # type: ignore[no-untyped-def]
        if self.down:
            raise QueueUnavailableError("cut off")
        return await super().observe()

    async def retire_replica(self, replica_id: str) -> None:
        if self.down:
            # As a server that hangs: nobody can wait for its answer.
            await asyncio.Event().wait()
        await super().retire_replica(replica_id)


class Members:
    """Replicas of a pool of cells."""

    def __init__(self, cells: int, *names: str) -> None:
        self.clock = ManualClock()
        self.store = InProcessRedis(self.clock)
        self.down: set[str] = set()
        self.cells = [self.open(cell_name(POOL, cell)) for cell in range(4)]
        self.parts = {name: ReplicaCells(POOL, self.open, cells, 4.0, clock=self.clock.monotonic) for name in names}
        self.queues: dict[str, CellMember] = {name: part.open() for name, part in self.parts.items()}
        self.running: dict[str, tuple[tuple[str, str], ...]] = {}
        self.seconds = dict.fromkeys(names, 0.0)
        self.ended: dict[str, float] = {}
        """GPU-seconds of attempts that have ended."""
        self.told: dict[str, ReplicaTimes] = {}
        self.states: dict[str, ReplicaState] = {}
        """Of those that are not ready."""
        self.routers_in: tuple[int, ...] = ()
        """Cells in which a router keeps its lease."""
        self.connected: tuple[str, ...] = ()

    def open(self, name: str) -> RedisQueue:
        queue = Away(self.store, name)
        queue.down = name in self.down
        return queue

    def times(self, name: str) -> ReplicaTimes:
        total, ended = self.seconds[name], self.ended.get(name, 0.0)
        return ReplicaTimes(gpus=1, price_per_gpu_s=1.0, total=total, idle=total - ended, ended=ended)

    async def beat(self, times: int = 1, *, names: tuple[str, ...] = ()) -> None:
        for _ in range(times):
            self.clock.advance(1.0)
            for cell in self.routers_in:
                await self.cells[cell].heartbeat_router(RouterBeat("R", self.connected))
            for name in names or tuple(self.queues):
                self.seconds[name] += 1.0
                beat = ReplicaBeat(
                    name, b"", self.states.get(name, ReplicaState.READY), WINDOWS, self.running.get(name, ())
                )
                beat = replace(beat, times=self.times(name), told=self.told.get(name))
                await self.queues[name].heartbeat_replica(beat)
                self.told[name] = self.times(name)
                for task in (self.queues[name]._looking, self.queues[name]._finishing):
                    if task is not None:
                        await task

    async def members(self) -> list[list[str]]:
        return [[each.replica_id for each in (await cell.observe()).replicas] for cell in self.cells]

    def where(self) -> Mapping[str, int | None]:
        return {name: part._place.cell for name, part in self.parts.items()}

    async def close(self) -> None:
        for queue in (*self.queues.values(), *self.cells):
            await queue.close()


@pytest.fixture
async def four() -> AsyncIterator[Members]:
    """Four replicas and two cells."""
    members = Members(2, "a", "b", "c", "d")
    await members.beat()
    yield members
    await members.close()


async def test_replicas_that_start_one_after_the_other_spread_over_the_cells(four: Members) -> None:
    assert [2, 2, 0, 0] == [len(found) for found in await four.members()]


async def test_one_cell_is_joined_without_a_look_at_any() -> None:
    members = Members(1, "a")
    await members.beat(3 * LOOK_HEARTBEATS)
    assert [["a"], [], [], []] == await members.members()
    assert members.queues["a"]._looking is None
    await members.close()


async def _line(members: Members, cell: int, count: int) -> None:
    """Let entries wait in a cell that no router reaches a replica of."""
    members.routers_in = (0, 1)
    await members.cells[cell].heartbeat_router(RouterBeat("R", ()))
    for number in range(count):
        await members.cells[cell].submit("R", entry(f"w{number}"))


async def test_an_idle_replica_moves_to_a_line_and_back_to_none(four: Members) -> None:
    await _line(four, 0, 50)
    await four.beat(3 * LOOK_HEARTBEATS)
    assert [3, 1, 0, 0] == [len(found) for found in await four.members()]
    before = four.where()
    await four.beat(5 * LOOK_HEARTBEATS)
    assert before == four.where()


async def test_a_replica_with_a_grant_on_its_way_does_not_leave(four: Members) -> None:
    """The router has the grant, and the replica does not know of it yet."""
    here = four.where()
    first = next(name for name, cell in here.items() if cell == 1)
    other = next(name for name, cell in here.items() if cell == 1 and name != first)
    four.connected = first, other
    await four.cells[1].heartbeat_router(RouterBeat("R", four.connected))
    granted = []
    for name in ("p", "q"):
        answer = await four.cells[1].submit("R", entry(name))
        assert answer.grant is not None
        granted.append(answer.grant)
    started = [(grant.request_id, grant.attempt) for grant in granted]
    await four.cells[1].heartbeat_router(RouterBeat("R", four.connected, tuple(started)))
    await _line(four, 0, 50)
    await four.beat(2 * LOOK_HEARTBEATS)
    assert here == four.where()
    for grant in granted:
        await four.cells[1].release("R", grant.request_id, grant.attempt, Settlement(1))
    await four.beat(3 * LOOK_HEARTBEATS)
    assert [3, 1, 0, 0] == [len(found) for found in await four.members()]


async def test_a_cell_that_lost_its_replicas_gets_one_that_is_busy_and_the_other_cell_once_it_has_finished(
    four: Members,
) -> None:
    here = four.where()
    left = tuple(name for name, cell in here.items() if cell == 0)
    for name, cell in here.items():
        if cell == 1:
            await four.queues[name].retire_replica(name)
    four.running = {name: ((f"run-{name}", "x.1"),) for name in left}
    await four.beat(3 * LOOK_HEARTBEATS, names=left)
    # One takes no new work there and serves the other cell with the slot that it has free; the other goes on.
    assert [[0, 2], [2]] == [
        sorted(each.windows.sequences for each in (await four.cells[number].observe()).replicas) for number in (0, 1)
    ]
    assert [1] == [each.sequences for each in (await four.cells[1].observe()).replicas]
    four.running = {}
    await four.beat(2, names=left)
    assert [1, 1] == [len(found) for found in await four.members()][:2]


class Mover:
    """A replica that runs a request of cell 0 while two wait in cell 1, which has no replica."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self.name = next(name for name, cell in members.where().items() if cell == 0)
        members.connected, members.routers_in = (self.name,), (0, 1)
        self.grants: dict[str, Grant] = {}

    async def begin(self) -> None:
        members = self.members
        for name, cell in list(members.where().items()):
            if cell == 1 or name == next(n for n, c in reversed(list(members.where().items())) if c == 0):
                await members.queues.pop(name).retire_replica(name)
        assert [self.name] == list(members.queues)
        await members.cells[0].heartbeat_router(RouterBeat("R", members.connected))
        await self.take(0, await members.cells[0].submit("R", entry("long")))
        for number in range(2):
            await members.cells[1].heartbeat_router(RouterBeat("R", ()))
            await members.cells[1].submit("R", entry(f"w{number}"))

    async def take(self, cell: int, submitted: Submitted) -> None:
        assert submitted.grant is not None
        self.note([submitted.grant])

    def note(self, grants: Sequence[Grant]) -> None:
        self.grants |= {grant.request_id: grant for grant in grants}
        self.members.running = {self.name: tuple((g.request_id, g.attempt) for g in self.grants.values())}

    async def beat(self, times: int) -> None:
        for _ in range(times):
            await self.members.beat()
            for cell in (0, 1):
                reply = await self.members.cells[cell].heartbeat_router(RouterBeat("R", self.members.connected))
                self.note(reply.mail.grants)
            assert len(self.grants) <= WINDOWS.sequences

    async def end(self, cell: int, name: str, gpu_seconds: float = 0.0) -> None:
        grant = self.grants.pop(name)
        mail = await self.members.cells[cell].release("R", name, grant.attempt, Settlement(1, gpu_seconds=gpu_seconds))
        self.note(mail.grants)


@pytest.fixture
async def mover(four: Members) -> Mover:
    found = Mover(four)
    await found.begin()
    return found


async def test_a_busy_replica_serves_a_line_without_replicas_at_once_and_keeps_its_windows(mover: Mover) -> None:
    members = mover.members
    await mover.beat(4 * LOOK_HEARTBEATS)
    assert {"long", "w0"} == set(mover.grants)
    assert {mover.name: 1} == {name: members.where()[name] for name in members.queues}
    assert [[mover.name], [mover.name]] == (await members.members())[:2]
    await mover.end(1, "w0")
    await mover.beat(2)
    assert {"long", "w1"} == set(mover.grants)
    await mover.end(0, "long")
    await mover.beat(3)
    assert [[], [mover.name]] == (await members.members())[:2]
    assert 1 == (await members.cells[1].observe()).running


async def test_a_replica_that_stops_while_it_finishes_leaves_both_cells(mover: Mover) -> None:
    await mover.beat(4 * LOOK_HEARTBEATS)
    assert {"long", "w0"} == set(mover.grants)
    # A replica stops on another loop than that of its heartbeats.
    await mover.members.parts[mover.name].open().retire_replica(mover.name)
    assert [[], []] == (await mover.members.members())[:2]


async def test_what_a_replica_finishes_for_a_cell_counts_once(mover: Mover) -> None:
    """Its account goes on in the cell that it went to, and the request is settled where it is on record."""
    await mover.beat(4 * LOOK_HEARTBEATS)
    mover.members.ended[mover.name] = 7.0
    await mover.end(0, "long", 7.0)
    await mover.beat(4)
    lines = merge_costs([await cell.costs(0, 10**7) for cell in mover.members.cells])
    assert 7.0 == pytest.approx(sum(line.requests.gpu_seconds for line in lines))
    assert 0.0 == pytest.approx(sum(line.lost.gpu_seconds for line in lines))
    assert [[], [mover.name]] == (await mover.members.members())[:2]


async def test_a_cell_that_goes_away_while_its_work_is_finished_is_given_up_after_a_lease(
    mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mover.beat(4 * LOOK_HEARTBEATS)
    place, now = mover.members.parts[mover.name]._place, [time.monotonic()]
    monkeypatch.setattr("cluster.queue.cells.member.time.monotonic", lambda: now[0])
    mover.members.down = {POOL}
    await mover.members.beat()
    assert place.finishes is not None
    now[0] += 5.0
    await mover.members.beat()
    assert place.finishes is None
    assert 1 == place.cell


@pytest.mark.parametrize("state", [ReplicaState.READY, ReplicaState.STANDBY])
async def test_a_replica_of_a_cell_that_is_cut_off_goes_on_in_another(
    four: Members, monkeypatch: pytest.MonkeyPatch, state: ReplicaState
) -> None:
    """A standby would hear no order to wake."""
    now = [1000.0]
    monkeypatch.setattr("cluster.queue.cells.member.time.monotonic", lambda: now[0])
    await four.beat()
    four.down = {cell_name(POOL, 1)}
    cut_off = tuple(name for name, cell in four.where().items() if cell == 1)
    four.states = dict.fromkeys(cut_off, state)
    for name in cut_off:
        four.queues[name]._own().down = True  # type: ignore[attr-defined]
    for step in range(3):
        now[0] += 2.0 * step
        with pytest.raises(QueueUnavailableError):
            await four.beat(names=cut_off[:1])
        await asyncio.gather(*(four.queues[name]._looking or asyncio.sleep(0) for name in cut_off[:1]))
    await four.beat(names=cut_off[:1])
    assert 0 == four.where()[cut_off[0]]
    assert cut_off[0] in [each.replica_id for each in (await four.cells[0].observe()).replicas]


async def test_fewer_cells_end_up_with_all_replicas_and_more_get_theirs(four: Members) -> None:
    for part in four.parts.values():
        part.layout.change(1)
    await four.beat(LEFT_BEATS + 4 * LOOK_HEARTBEATS)
    assert [4, 0, 0, 0] == [len(found) for found in await four.members()]
    for part in four.parts.values():
        part.layout.change(4)
    await four.beat(8 * LOOK_HEARTBEATS)
    assert [1, 1, 1, 1] == [len(found) for found in await four.members()]


async def test_time_counts_once_wherever_a_replica_was(four: Members) -> None:
    for count in (1, 4, 2, 1, 2):
        for part in four.parts.values():
            part.layout.change(count)
        await four.beat(8 * LOOK_HEARTBEATS)
    lines = merge_costs([await cell.costs(0, 10**7) for cell in four.cells])
    assert sum(four.seconds.values()) == pytest.approx(sum(line.total.gpu_seconds for line in lines))
    assert sum(four.seconds.values()) == pytest.approx(sum(line.idle.gpu_seconds for line in lines))
    assert all([await cell.costs(0, 10**7) for cell in four.cells])


@pytest.mark.parametrize("state", [ReplicaState.DRAINING, ReplicaState.STANDBY])
async def test_a_replica_that_takes_no_work_stays_where_it_is(four: Members, state: ReplicaState) -> None:
    here = four.where()
    await _line(four, 0, 50)
    four.states = {name: state for name, cell in here.items() if cell == 1}
    await four.beat(4 * LOOK_HEARTBEATS)
    assert {1} == {four.where()[name] for name in four.states}


async def test_a_look_that_ends_while_it_leaves_keeps_it_where_it_is(
    four: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, queue = "a", four.queues["a"]
    here = four.where()[name]
    queue._target = 1 - (here or 0)

    async def leave(beat: ReplicaBeat) -> bool:
        # Nothing waits anywhere, so it finds that it should stay.
        await queue._look()
        return True

    monkeypatch.setattr(queue, "_may_leave", leave)
    await four.beat(names=(name,))
    assert here == four.where()[name]
    assert [2, 2] == [len(found) for found in await four.members()][:2]


async def test_a_look_that_began_in_another_cell_decides_nothing(
    four: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(name for name, cell in four.where().items() if cell == 1)
    other = next(each for each, cell in four.where().items() if cell == 1 and each != name)
    queue, loads = four.queues[name], four.queues[name]._loads
    await _line(four, 0, 50)
    await four.beat(names=(other,))

    async def slow() -> list[CellLoad | None]:
        found = await loads()
        assert queue._newest is not None
        await queue._move(queue._newest, 0)
        return found

    queue._target = None
    monkeypatch.setattr(queue, "_loads", slow)
    await queue._look()
    assert None is queue._target
    assert 0 == four.where()[name]
    await four.beat()
    assert name in (await four.members())[0]


async def test_a_cell_that_is_given_up_keeps_a_replica_until_no_router_sends_anything_there(four: Members) -> None:
    for part in four.parts.values():
        part.layout.change(1)
    await four.beat(LEFT_BEATS - 1)
    assert {0, 1} == set(four.where().values())
    await four.beat(4 * LOOK_HEARTBEATS)
    assert {0} == set(four.where().values())


async def test_what_waits_in_a_cell_that_all_replicas_have_left_is_served(four: Members) -> None:
    for part in four.parts.values():
        part.layout.change(1)
    await four.beat(LEFT_BEATS + 4 * LOOK_HEARTBEATS)
    await _line(four, 1, 1)
    await four.beat(3 * LOOK_HEARTBEATS)
    assert 1 in four.where().values()
    await four.cells[1].cancel("R", "acme", "w0")
    await four.beat(3 * LOOK_HEARTBEATS)
    assert {0} == set(four.where().values())


async def test_a_new_replica_learns_of_cells_that_were_given_up_before_it_began() -> None:
    members = Members(2, "a", "b")
    for count in (4, 2):
        await members.cells[0].cells(count)
    await members.beat(LEFT_BEATS + 2 * LOOK_HEARTBEATS)
    await members.cells[3].heartbeat_router(RouterBeat("R", ()))
    await members.cells[3].submit("R", entry("late"))
    members.routers_in = (3,)
    await members.beat(3 * LOOK_HEARTBEATS)
    assert 3 in members.where().values()
    await members.close()


async def test_only_the_replica_that_may_move_looks_at_other_cells(four: Members) -> None:
    """So the looks of a large pool cost little, and each cell's leader looks often."""
    seen = Counter[str]()
    for name, queue in four.queues.items():
        load = queue._load

        async def count(number: int, name: str = name, load=load):  # type: ignore[no-untyped-def]
            seen[name] += 1
            return await load(number)

        queue._load = count  # type: ignore[method-assign]
    await four.beat(LOOK_HEARTBEATS)
    leaders = {min(name for name, cell in four.where().items() if cell == number) for number in (0, 1)}
    assert {name: 3 if name in leaders else 1 for name in four.queues} == seen


async def test_a_busy_replica_goes_to_a_line_with_what_it_has_free_and_takes_nothing_new_in_its_cell(
    four: Members,
) -> None:
    names = tuple(name for name, cell in four.where().items() if cell == 1)
    four.running = {name: ((f"run-{name}", "x.1"),) for name in names}
    await _line(four, 0, 50)
    await four.beat(2 * LOOK_HEARTBEATS)
    rooms = sorted(each.windows.sequences for each in (await four.cells[1].observe()).replicas)
    assert [0, 2] == rooms
    assert [0, 0, 1] == sorted(each.sequences for each in (await four.cells[0].observe()).replicas)
    four.running = {}
    await four.beat(2)
    assert [3, 1] == [len(found) for found in await four.members()][:2]


@pytest.mark.parametrize("new", [False, True], ids=["serving", "new"])
async def test_replicas_whose_settings_say_one_cell_hear_of_more(*, new: bool) -> None:
    """Routers have newer settings, and send requests with keys to cells that nobody would serve."""
    members = Members(1, "r1", "r2", "r3")
    if not new:
        # It has served, so that the change takes its time.
        await members.cells[0].finish_key("A", "acme", "key", "q", b"")
        await members.beat()
        await members.cells[0].submit("A", entry("q", client_key="key", digest="d"))
    await members.cells[0].cells(3)
    await members.beat(40)
    assert [1, 1, 1, 0] == [len(names) for names in await members.members()]
    await members.close()
