"""What the autoscaler does while a cell of its pool is away: it goes on with what it sees, and removes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import QueueUnavailableError
from cluster.queue.cells.layout import Layout
from cluster.queue.cells.names import cell_name
from cluster.queue.cells.queue import CellQueue
from cluster.queue.cells.seen import CellsSeen
from cluster.queue.heartbeats import PoolView, ReplicaBeat, ReplicaBeatReply, RouterBeat, RouterBeatReply
from tests.cluster.autoscaler.conftest import Backend
from tests.cluster.autoscaler.scaled_pool import Site, names
from tests.cluster.queue.backends import POOL

CELLS = 2


class AwayCell:
    """A cell that may be away."""

    def __init__(self, pool: CellPool, number: int, cell: Any) -> None:
        self._pool, self._number, self._cell = pool, number, cell

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            if self._number == self._pool.away and name != "close":
                raise QueueUnavailableError("cut off")
            return await getattr(self._cell, name)(*arguments, **named)

        return call


class CellPool:
    """A pool of two cells as its router, its replicas and its autoscalers see it. The replicas are in them in turn."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.away: int | None = None
        layout = Layout(CELLS, clock=backend.clock.monotonic)
        self._router = CellQueue(POOL, self._open, CellsSeen(layout))
        self._views = CellQueue(POOL, self._open)
        self._own = [self._open(cell_name(POOL, number)) for number in range(CELLS)]
        self._cell_of: dict[str, int] = {}

    def _open(self, name: str) -> Any:
        number = 0 if name == POOL else 1
        return AwayCell(self, number, self._backend.queue(name))

    def succeed(self) -> None:
        """Let the next look be that of another process."""
        self._views = CellQueue(POOL, self._open)

    async def heartbeat_replica(self, beat: ReplicaBeat) -> ReplicaBeatReply:
        joins = next(number for number in (len(self._cell_of) % CELLS, 0) if number != self.away)
        cell = self._cell_of.setdefault(beat.replica_id, joins)
        try:
            reply: ReplicaBeatReply = await self._own[cell].heartbeat_replica(beat)
        except QueueUnavailableError:
            return ReplicaBeatReply((), "")
        return reply

    async def heartbeat_router(self, beat: RouterBeat) -> RouterBeatReply:
        return await self._router.heartbeat_router(beat)

    async def observe(self, **named: Any) -> PoolView:
        return await self._views.observe(**named)


@pytest.fixture
def site(local: Backend) -> Site:
    """A pool of two cells."""
    site = Site(local, replicas=4, start_timeout_s=120)
    site.queue = CellPool(local)
    return site


async def test_nothing_is_removed_and_what_is_needed_is_added_while_a_cell_is_away(site: Site) -> None:
    scaler = site.scaler()
    before = (await site.run(scaler, 10, rate=60.0))[-1].ready
    site.queue.away = 1
    quiet = await site.run(scaler, 40)
    assert {before} == {record.replicas for record in quiet}
    assert [] == [told for told in site.platform.told if told < before]
    # Those of the cell that is away count as they were, not as replicas that are awaited.
    assert {(before, 0)} == {(record.ready, record.starting) for record in quiet}
    assert "stale" in names(quiet[-1])
    assert "1 cell of the pool does not answer" in quiet[0].alarms
    busy = await site.run(scaler, 20, rate=200.0)
    assert before < busy[-1].ready
    site.queue.away = None
    back = await site.run(scaler, 40)
    assert () == back[-1].alarms
    assert back[-1].replicas < busy[-1].replicas


async def test_a_new_leader_that_never_saw_a_cell_removes_nothing(site: Site) -> None:
    """Its replicas are neither missing nor late."""
    before = (await site.run(site.scaler(), 10, rate=60.0))[-1].ready
    site.queue.away = 1
    site.queue.succeed()
    site.platform.told.clear()
    site.backend.clock.advance(60.0)
    scaler = site.scaler("b")
    quiet = await site.run(scaler, 30)
    assert [] == site.platform.told
    assert {(before, 0)} == {(record.replicas, record.failed_starts) for record in quiet}
    busy = await site.run(scaler, 20, rate=200.0)
    assert before < busy[-1].replicas
    site.queue.away = None
    back = await site.run(scaler, 2, rate=200.0)
    assert (0, ()) == (back[-1].failed_starts, back[-1].alarms)
