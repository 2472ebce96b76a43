"""A replica in a pool of several cells: it takes work in one at a time, and moves to where it is needed.

To move, it first takes no new work in its cell: a heartbeat with room for no sequence. Once all slots that the cell has
on record for it run, no grant of that cell can come any more. Then it joins the other one, which counts what it still
runs against its room, and leaves its own when the last slot there is free. So its windows hold, whatever is lost on the
way, and what it has free serves the other cell from the beginning.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from cluster.errors import QueueUnavailableError
from cluster.queue.cells.accounts import Finishing, ReplicaPlace
from cluster.queue.cells.cell import Cell
from cluster.queue.cells.layout import SETTLE_S, Layout
from cluster.queue.cells.moving import CellLoad, first_cell, leads, load_of, next_cell, with_member
from cluster.queue.cells.names import cell_name
from cluster.queue.heartbeats import PoolView, ReplicaBeat, ReplicaBeatReply, ReplicaRecord, ReplicaTimes
from penstock.models import ReplicaState

_LOG = logging.getLogger(__name__)

LOOK_HEARTBEATS = 3
"""Heartbeats between two looks of a replica at its cell. The one of a cell that may move looks at the others, too."""
REPLICAS_A_LOOK = 32
"""Replicas of a cell for which one heartbeat more passes between two looks of each."""

LEARN_S = 3.0
"""How much later than a replica a router may learn that the number of cells has changed."""


class CellMember:
    """Queue of a pool as one replica sees it. It belongs to the event loop that makes the first call."""

    def __init__(
        self,
        pool: str,
        open_cell: Callable[[str], Cell],
        layout: Layout,
        place: ReplicaPlace,
        *,
        lease_s: float,
    ) -> None:
        """`place` is shared by all queues of a replica."""
        self.pool = pool
        self._open = open_cell
        self._layout = layout
        self._place = place
        self._lease_s = lease_s
        self._cell: Cell | None = None
        self._cell_number = 0
        self._target: int | None = None
        """Cell that it moves to; None while it stays."""
        self._beats_left = LOOK_HEARTBEATS
        self._looking: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        """The end of its membership in a cell that does not answer."""
        self._finishing: asyncio.Task[None] | None = None
        """Report to the cell that it finishes the work of."""
        self._answered_at = time.monotonic()
        self._newest: ReplicaBeat | None = None

    def _own(self) -> Cell:
        """Return the cell that it is in; before it joins one, the first."""
        number = self._place.cell or 0
        if self._cell is None or self._cell_number != number:
            self._cell, self._cell_number = self._open(cell_name(self.pool, number)), number
        return self._cell

    async def heartbeat_replica(self, beat: ReplicaBeat) -> ReplicaBeatReply:
        place = self._place
        if place.finishes is not None and (self._finishing is None or self._finishing.done()):
            # Beside the heartbeat, which must not wait for it.
            self._finishing = asyncio.create_task(self._finish(beat, place.finishes), name="cell-finish")
        if self._layout.span == 1 and not place.cell:
            if place.cell is None:
                place.enter(0)
            self._target = None
            reply = await self._beat(beat)
            if reply.most_cells > 1:
                # Routers have newer settings.
                await self._read_number()
            return reply
        if place.cell is None:
            await self._read_number()
            place.enter(first_cell(beat.replica_id, await self._loads()))
        self._newest = beat
        if not self._may_move(beat) or place.finishes is not None:
            self._target = None
            return await self._beat(beat)
        target = self._target
        # A look may end meanwhile and find that it should stay, or go elsewhere.
        if target is not None and await self._may_leave(beat) and target == self._target:
            return await self._move(beat, target)
        self._look_sometimes()
        return await self._beat(beat if self._target is None else _without_room(beat))

    async def _beat(self, beat: ReplicaBeat) -> ReplicaBeatReply:
        """Send a heartbeat to the replica's cell."""
        place = self._place
        cell = place.cell or 0
        own = beat
        if beat.times is not None:
            own = replace(beat, times=place.own(cell, beat.times), told=place.last(cell) or beat.told)
        reply = await self._own().heartbeat_replica(own)
        if beat.times is not None:
            place.told(cell, beat.times)
        self._answered_at = time.monotonic()
        return reply

    async def account(self, replica_id: str, times: ReplicaTimes, told: ReplicaTimes | None = None) -> None:
        place = self._place
        cell = place.cell or 0
        await self._own().account(replica_id, place.own(cell, times), place.last(cell) or told)
        place.told(cell, times)

    async def retire_replica(self, replica_id: str) -> None:
        if (finishes := self._place.finishes) is not None:
            self._place.finishes = None
            await self._leave(self._open(cell_name(self.pool, finishes.cell)), replica_id, finishes.cell)
        await self._own().retire_replica(replica_id)

    async def close(self) -> None:
        tasks = [task for task in (self._looking, self._leaving, self._finishing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._cell is not None:
            await self._cell.close()

    # --- moves --------------------------------------------------------------------------------------------------------

    async def _may_leave(self, beat: ReplicaBeat) -> bool:
        """Return whether no grant of its cell can come any more."""
        if self._is_away():
            # Its lease there has ended, or will. What the cell grants later does not fit, and the replica refuses it.
            return not beat.running
        try:
            await self._beat(_without_room(beat))
            view = await self._own().observe()
        except QueueUnavailableError:
            return self._is_away() and not beat.running
        own = _own_record(view, beat.replica_id)
        # More slots than it runs are grants on their way.
        return own is None or (own.sequences <= len(beat.running) and own.windows.sequences == 0)

    def _may_move(self, beat: ReplicaBeat) -> bool:
        """Return whether it has reason to move. One that sleeps or drains takes nothing anywhere; but a standby whose
        cell is away hears no order to wake.
        """
        return beat.state is ReplicaState.READY or (beat.state is ReplicaState.STANDBY and self._is_away())

    def _is_away(self) -> bool:
        return time.monotonic() - self._answered_at > self._lease_s

    async def _move(self, beat: ReplicaBeat, target: int) -> ReplicaBeatReply:
        former, number, before, away = self._own(), self._place.cell, self._answered_at, self._is_away()
        self._cell, self._target = None, None
        self._place.enter(target)
        try:
            reply = await self._beat(beat)
        except QueueUnavailableError:
            # It is in one cell, and that is the new one if it answers again.
            self._answered_at = before
            raise
        finally:
            if beat.running and number is not None:
                await former.close()
                self._place.finishes = Finishing(number, frozenset(beat.running), before)
            else:
                leaving = asyncio.create_task(self._leave(former, beat.replica_id, number), name="cell-leave")
                if away:
                    # It may take as long as a lease to say nothing, and the new one wants the next heartbeat.
                    self._leaving = leaving
                else:
                    await leaving
        _LOG.info("replica.cell", extra={"replica": beat.replica_id, "from": number, "to": target})
        return reply

    async def _leave(self, former: Cell, replica_id: str, number: int | None) -> None:
        # With its lease there it has no room there, so that a lost call costs nothing.
        try:
            await former.retire_replica(replica_id)
        except QueueUnavailableError:
            _LOG.warning("replica.cell_left_to_expire", extra={"replica": replica_id, "cell": number})
        finally:
            await former.close()

    async def _finish(self, beat: ReplicaBeat, finishes: Finishing) -> None:
        """Tell the cell of before what still runs of its work, and leave it once that has ended. Its account of time
        goes on in the new one.
        """
        former = self._open(cell_name(self.pool, finishes.cell))
        try:
            await former.heartbeat_replica(_without_room(_part_of(beat, finishes.running)))
            own = _own_record(await former.observe(), beat.replica_id)
            finishes.answered_at = time.monotonic()
            if own is not None and own.sequences:
                return
            await former.retire_replica(beat.replica_id)
        except QueueUnavailableError:
            if time.monotonic() - finishes.answered_at <= self._lease_s:
                return
            # Its lease there has ended, or will.
            _LOG.warning("replica.cell_left_to_expire", extra={"replica": beat.replica_id, "cell": finishes.cell})
        finally:
            await former.close()
        if self._place.finishes is finishes:
            self._place.finishes = None

    def _look_sometimes(self) -> None:
        if self._looking is not None and not self._looking.done():
            return
        self._beats_left -= 1
        if self._beats_left <= 0 or self._is_away():
            self._looking = asyncio.create_task(self._look(), name="cells")

    async def _look(self) -> None:
        """Look at the own cell, and at all where this replica may move; decide whether to."""
        own, beat = self._place.cell, self._newest
        if own is None or beat is None:
            return
        if not self._is_away():
            here = await self._load(own)
            self._beats_left = LOOK_HEARTBEATS + (len(here.members) if here else 0) // REPLICAS_A_LOOK
            if here is None:
                return
            if not leads(beat.replica_id, with_member(here, beat.replica_id, beat.windows.sequences)):
                self._target = None
                return
        elif beat.running:
            # It stays until that has ended.
            return
        await self._read_number()
        loads = await self._loads()
        # Newer than the look: it may have begun to drain meanwhile.
        if (beat := self._newest) is None or not self._may_move(beat):
            return
        if self._place.cell != own:
            # It has moved meanwhile, so what this look says of its cell holds for another.
            return
        size, here = beat.windows.sequences, loads[own]
        if here is not None:
            loads[own] = with_member(here, beat.replica_id, size)
        elif not self._is_away():
            return
        self._target = next_cell(beat.replica_id, own, loads, size=size, idle=not beat.running)

    async def _read_number(self) -> None:
        """Read how many cells the pool has."""
        first = self._open(cell_name(self.pool, 0))
        try:
            self._layout.follow(await first.cells(0))
        except QueueUnavailableError:
            # What it knows holds until cell 0 is back.
            return
        finally:
            await first.close()

    async def _loads(self) -> list[CellLoad | None]:
        """Return the loads of all cells; None for those that do not answer."""
        most = max(self._layout.span, (self._place.cell or 0) + 1)
        return list(await asyncio.gather(*(self._load(cell) for cell in range(most))))

    def _is_former(self, number: int) -> bool:
        # Until the homes have moved, requests with a key or a quota still go there.
        return number >= self._layout.count and self._layout.changed_s() >= SETTLE_S + LEARN_S

    async def _load(self, number: int) -> CellLoad | None:
        # A connection for each look: all replicas look at all cells, and would hold as many open.
        cell = self._open(cell_name(self.pool, number))
        try:
            return load_of(await cell.observe(), former=self._is_former(number))
        except QueueUnavailableError:
            return None
        finally:
            await cell.close()


class ReplicaCells:
    """One replica's way to the cells of its pool."""

    def __init__(
        self,
        pool: str,
        open_cell: Callable[[str], Cell],
        cells: int,
        lease_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`open_cell` opens a cell by its name; `cells` is the pool's number of cells, and `lease_s` how long a
        heartbeat keeps a lease.
        """
        self.layout = Layout(cells, clock=clock)
        self._place = ReplicaPlace()
        self._parts = pool, open_cell, self.layout, self._place
        self._lease_s = lease_s

    def open(self) -> CellMember:
        """Open the replica's queue, for one event loop."""
        return CellMember(*self._parts, lease_s=self._lease_s)


def _own_record(view: PoolView, replica_id: str) -> ReplicaRecord | None:
    return next((each for each in view.replicas if each.replica_id == replica_id), None)


def _part_of(beat: ReplicaBeat, running: frozenset[tuple[str, str]]) -> ReplicaBeat:
    """Return a heartbeat with some of what runs only, and without the account of its time."""
    produced = dict(zip(beat.running, beat.produced, strict=False))
    own = tuple(pair for pair in beat.running if pair in running)
    numbers = tuple(produced.get(pair, 0) for pair in own) if produced else ()
    return replace(beat, running=own, produced=numbers, times=None, told=None)


def _without_room(beat: ReplicaBeat) -> ReplicaBeat:
    return replace(beat, windows=replace(beat.windows, sequences=0))
