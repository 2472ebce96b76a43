"""What a router knows of the cells of a pool, from their answers to its heartbeats."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cluster.queue.cells.choice import CellView, choose, home
from cluster.queue.cells.ids import EntryCells
from cluster.queue.cells.layout import Layout
from cluster.queue.cells.merge import merge_mail, merge_replicas, sum3
from cluster.queue.entries import Mail
from cluster.queue.heartbeats import ReplicaRecord, RouterBeatReply
from penstock.models import ReplicaState


class CellsSeen:
    """Knowledge of one router, shared by its loop and the thread that renews its lease. Values are replaced and never
    changed, so either may read while the other writes.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.entries = EntryCells()
        self.away: frozenset[int] = frozenset()
        """Cells that did not answer the last heartbeat."""
        self._replies: Mapping[int, RouterBeatReply] = {}
        self._replicas: Mapping[int, tuple[ReplicaRecord, ...]] = {}
        self._views: Mapping[int, CellView] = {}
        self._choices: tuple[int, tuple[CellView, ...], Mapping[str, int]] | None = None
        """For the number of cells: those that take requests, and the cells of their replicas."""
        self._members: tuple[Mapping[int, frozenset[str]], Mapping[str, int]] = {}, {}
        """Replicas by cell, and the same by replica: with thousands it takes longer to build than all other views."""
        self.waiting = 0
        """Waiting entries of all cells at the last heartbeat."""
        self._sent: dict[int, int] = {}
        """Entries that were submitted to a cell since its last answer."""
        self._marks: dict[int, int] = {}
        self._renewed: Mapping[int, str] = {}
        """Cells whose store was found to be another one, with its identity."""

    # --- heartbeats ---------------------------------------------------------------------------------------------------

    def heard(self, cell: int, reply: RouterBeatReply) -> None:
        """Take a cell's answer to a heartbeat."""
        if (before := self._replies.get(cell)) is not None and before.run_id != reply.run_id:
            self._renewed = {**self._renewed, cell: reply.run_id}
            if not cell:
                self.layout.lost()
        self._replies = {**self._replies, cell: reply}
        if reply.replicas is not None:
            self._replicas = {**self._replicas, cell: reply.replicas}
        self._sent[cell] = 0
        self._marks[cell] = reply.marks
        views = {**self._views, cell: self._view(cell, reply, before)}
        self._views = {number: views[number] for number in sorted(views)}
        self.waiting = sum(view.waiting for view in views.values())
        self._choices = None

    def _view(self, cell: int, reply: RouterBeatReply, before: RouterBeatReply | None) -> CellView:
        known = self._views.get(cell)
        if reply.replicas is None and known is not None:
            # The same replicas as before: most heartbeats bring no news of them.
            room, replicas = known.room, known.replicas
        else:
            ready = [
                record
                for record in self._replicas.get(cell, ())
                if record.state is ReplicaState.READY and record.windows.sequences
            ]
            room = sum(record.windows.sequences for record in ready)
            replicas = frozenset(record.replica_id for record in ready)
        doubt = _by_others(reply, before) / room if room else 0.0
        return CellView(cell, sum(reply.waiting), reply.running, room, replicas, doubt)

    def lost(self, cells: frozenset[int]) -> None:
        """Take note of the cells that do not answer."""
        self.away = cells
        self._choices = None

    def replicas(self, cell: int) -> frozenset[str]:
        return frozenset(record.replica_id for record in self._replicas.get(cell, ()))

    def reply(self, mail: Mail) -> RouterBeatReply:
        """Return the pool's answer to a heartbeat: the newest of each cell, with the mail of this time."""
        replies = self._replies
        if len(replies) == 1:
            return replace(next(iter(replies.values())), mail=mail)
        every = [replies[cell] for cell in sorted(replies)]
        # Of a cell that is away the last answer holds, as that of a whole store does which is away.
        return replace(
            every[0],
            mail=mail,
            replicas=merge_replicas(self._replicas.values()),
            registry_version=sum(each.registry_version for each in every),
            waiting=sum3(each.waiting for each in every),
            running=sum(each.running for each in every),
            routers=tuple(sorted({name for each in every for name in each.routers})),
            positions=self._positions(),
            run_id=self._identity(every[0].run_id),
            granted=sum3(each.granted for each in every),
            time_ms=max(each.time_ms for each in every),
            marks=self.marks(),
        )

    def _positions(self) -> dict[str, int]:
        scales = {cell: self._scale(cell) for cell in self._replies if cell not in self.away}
        return {
            name: round(number * scale)
            for cell, scale in scales.items()
            for name, number in self._replies[cell].positions.items()
        }

    def _identity(self, first: str) -> str:
        """Return the identity of all stores together. A cell that is new to this router changes nothing: it has lost
        nothing. A store that was emptied changes it.
        """
        return first + "".join(f"+{cell}={run_id}" for cell, run_id in sorted(self._renewed.items()) if cell)

    # --- requests -----------------------------------------------------------------------------------------------------

    def views(self) -> list[CellView]:
        """Return the cells that new requests may go to and that answer, as they are now."""
        return [self._now(view) for cell, view in self._views.items() if self._is_open(cell)]

    def _is_open(self, cell: int) -> bool:
        return cell < self.layout.count and cell not in self.away

    def _now(self, view: CellView) -> CellView:
        # What was sent since the answer runs or waits by now.
        sent = self._sent.get(view.cell, 0)
        if not sent:
            return view
        # Not `replace`, which costs a router more than all the rest of a choice.
        return CellView(view.cell, view.waiting, view.running + sent, view.room, view.replicas, view.doubt)

    def place(self, tenant: str, preferred: Sequence[str], source: random.Random, *, pinned: bool) -> int:
        """Return the cell for a new entry of a tenant; a `pinned` one goes to its tenant's home."""
        if pinned:
            return home(tenant, self.layout.homes)
        drawn = self.draw(preferred, source)
        return source.randrange(self.layout.count) if drawn is None else choose(*drawn, source.random())

    def draw(
        self, preferred: Sequence[str], source: random.Random
    ) -> tuple[CellView, CellView, CellView | None] | None:
        """Draw two cells that take requests; add that of the first preferred replica. None where no cell answers."""
        choices = self._choices
        if choices is None or choices[0] != self.layout.count:
            choices = self._choices = self._read_choices()
        _, cells, members = choices
        if not cells:
            return None
        first = source.randrange(len(cells))
        second = (first + 1 + source.randrange(len(cells) - 1)) % len(cells) if len(cells) > 1 else first
        own = members.get(preferred[0]) if preferred else None
        wanted = None if own is None else self._now(self._views[own])
        return self._now(cells[first]), self._now(cells[second]), wanted

    def _read_choices(self) -> tuple[int, tuple[CellView, ...], Mapping[str, int]]:
        views = [view for cell, view in self._views.items() if self._is_open(cell)]
        # Where no replica is, nothing is served. It may come to any cell, though, so the line is kept evenly then.
        views = [view for view in views if view.room] or views
        by_cell = {view.cell: view.replicas for view in views}
        known, members = self._members
        if known != by_cell:
            members = {name: cell for cell, names in by_cell.items() for name in names}
            self._members = by_cell, members
        return self.layout.count, tuple(views), members

    @property
    def time_ms(self) -> int:
        """Pool time, as last heard."""
        return max((reply.time_ms for reply in self._replies.values()), default=0)

    @property
    def most_waiting(self) -> int:
        """Waiting entries, if all that this router has sent since waits."""
        return self.waiting + sum(self._sent.values())

    def sent(self, cell: int) -> None:
        """Count an entry that goes to a cell."""
        self._sent[cell] = self._sent.get(cell, 0) + 1

    def position(self, cell: int, number: int) -> int:
        """Return a place in a cell's line as one in the pool's: so many entries will be granted before in all cells
        together, as far as they grant in proportion to their replicas.
        """
        return round(number * self._scale(cell))

    def _scale(self, cell: int) -> float:
        rooms = {number: view.room for number, view in self._views.items() if number < self.layout.count}
        own = rooms.get(cell, 0)
        return sum(rooms.values()) / own if own else len(rooms) or 1

    def marks(self, cell: int | None = None, count: int = 0) -> int:
        """Return the number of writes of marks in all cells, as far as it is known, after an answer of one of them."""
        if cell is not None:
            self._marks[cell] = count
        return sum(self._marks.values())

    def own_mail(self, cell: int, mail: Mail) -> Mail:
        """Note the cells of entries in a cell's mail. Leave out what is outdated: of an entry that moved away since."""
        entries = self.entries
        for request_id in [each.request_id for each in mail.grants] + [each.request_id for each in mail.orders]:
            if entries.get(request_id) is None:
                entries.put(request_id, cell)
        grants = tuple(grant for grant in mail.grants if entries.get(grant.request_id) == cell)
        orders = tuple(order for order in mail.orders if entries.get(order.request_id) == cell)
        return mail if len(grants) + len(orders) == len(mail.grants) + len(mail.orders) else Mail(grants, orders)

    def all_mail(self, mails: Mapping[int, Mail]) -> Mail:
        """Put the mail of several cells together."""
        return merge_mail(self.own_mail(cell, mail) for cell, mail in mails.items())


def _by_others(reply: RouterBeatReply, before: RouterBeatReply | None) -> float:
    """Return what other routers had a cell begin between two answers: their part of all that it granted."""
    if before is None or not reply.routers:
        return 0.0
    granted = sum(reply.granted) - sum(before.granted)
    return max(0, granted) * (1 - 1 / len(reply.routers))
