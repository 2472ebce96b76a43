"""Routers of a simulated pool: they see cells as production's do, by heartbeats, and decide by the same code."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from cluster.models import Windows
from cluster.queue.cells.choice import home, moves, weight_in_cell
from cluster.queue.cells.layout import Layout
from cluster.queue.cells.seen import CellsSeen
from cluster.queue.cells.weights import KeyedParts
from cluster.queue.entries import Mail
from cluster.queue.heartbeats import ReplicaRecord, RouterBeatReply
from loadtest.benchmarks.cells.model_cell import ModelCell
from loadtest.benchmarks.cells.model_line import CellEntry
from loadtest.benchmarks.cells.traffic import replica_name, tenant_name
from penstock.models import ReplicaState

_NO_MAIL = Mail()


@dataclass(slots=True)
class CellState:
    """A cell and what heartbeats say of it."""

    number: int
    model: ModelCell
    version: int = -1
    records: tuple[ReplicaRecord, ...] = ()
    granted: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Grants ever made, by class."""
    away: bool = False
    """Whether it does not answer."""
    unreleased: list[CellEntry] = field(default_factory=list)
    """Entries that ended while it was away."""

    def registry(self) -> tuple[ReplicaRecord, ...]:
        """Return the replicas' records."""
        if self.version != self.model.version:
            self.version = self.model.version
            self.records = tuple(
                ReplicaRecord(
                    replica_name(number), b"", ReplicaState.READY, Windows(each.sequences, 0, 0), each.held, 0, 0, 0
                )
                for number, each in sorted(self.model.replicas.items())
            )
        return self.records


class SimulatedRouter:
    """One router."""

    def __init__(self, number: int, cells: list[CellState], routers: tuple[str, ...], seed: int) -> None:
        self.number = number
        self._routers = routers
        self._cells = cells
        self._seen = CellsSeen(Layout(len(cells)))
        self._random = random.Random(f"{seed} {number}")
        self._parts = KeyedParts()
        self._versions = [-1] * len(cells)
        self._free: list[dict[int, CellEntry]] = [{} for _ in cells]
        """Waiting entries that may go to another cell, by cell, oldest first."""

    def place(self, entry: CellEntry) -> int:
        """Choose the cell of an entry, and its weight there."""
        preferred = [replica_name(number) for number in entry.preferred]
        cell = self._seen.place(tenant_name(entry.tenant), preferred, self._random, pinned=entry.pinned)
        self._seen.sent(cell)
        tenant, cells = tenant_name(entry.tenant), len(self._cells)
        part = self._parts.note(tenant, keyed=entry.pinned)
        if part and cells > 1:
            at_home = entry.pinned or cell == home(tenant, cells)
            entry.weight = weight_in_cell(entry.weight, cells, part, at_home=at_home)
        return cell

    def waits(self, cell: int, entry: CellEntry) -> None:
        """Note an entry that waits."""
        if not entry.pinned:
            self._free[cell][entry.number] = entry

    def got_slot(self, cell: int, entry: CellEntry) -> None:
        """Note that an entry waits no more."""
        self._free[cell].pop(entry.number, None)

    def beat(self, now_ms: int) -> None:
        """Hear from all cells."""
        away = frozenset(state.number for state in self._cells if state.away)
        for state in self._cells:
            if state.away:
                continue
            records = state.registry()
            state.model.beat_router()
            # A small cell's heartbeat brings its replicas each time, which is no other news.
            news = state.version != self._versions[state.number]
            self._versions[state.number] = state.version
            one, two, three = state.granted
            reply = RouterBeatReply(
                _NO_MAIL,
                records if news else None,
                state.version,
                state.model.waiting_by_class(),
                state.model.running,
                self._routers,
                {},
                "model",
                (one, two, three),
                now_ms,
            )
            self._seen.heard(state.number, reply)
        if away != self._seen.away:
            self._seen.lost(away)

    def moves(self) -> list[tuple[CellEntry, int, int]]:
        """Return the entries to move, with both cells."""
        own = {cell: len(entries) for cell, entries in enumerate(self._free) if entries}
        if not own:
            return []
        found, taken = list[tuple[CellEntry, int, int]](), Counter[int]()
        for move in moves(self._seen.views(), own):
            # As router.dispatch.cells.moves has it: the oldest of each cell.
            entries = list(self._free[move.source].values())[: move.entries]
            found += [(entry, move.source, move.target) for entry in entries]
            taken[move.source] += len(entries)
        return found
