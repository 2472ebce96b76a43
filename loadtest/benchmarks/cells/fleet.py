"""Replicas of a simulated pool, which look at all cells as production's do and move by the same rule."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass

from cluster.queue.cells.member import LOOK_HEARTBEATS, REPLICAS_A_LOOK
from cluster.queue.cells.moving import CellLoad, leads, next_cell, with_member
from loadtest.benchmarks.cells.model_line import ModelReplica
from loadtest.benchmarks.cells.routers import CellState
from loadtest.benchmarks.cells.tally import CellTally
from loadtest.benchmarks.cells.traffic import replica_name

BEAT_MS = 1_000


@dataclass(slots=True, eq=False)
class _Member:
    model: ModelReplica
    cell: int
    target: int | None = None
    looks_at: int = 0
    """Heartbeats until its next look."""


class SimulatedFleet:
    """All replicas."""

    def __init__(self, cells: list[CellState], replicas: int, sequences: int, seed: int) -> None:
        self._cells = cells
        self._sequences = sequences
        draw = random.Random(seed)
        self._due = defaultdict[int, list[_Member]](list)
        """Looks by moment."""
        self._leaving: list[_Member] = []
        for number in range(replicas):
            member = _Member(ModelReplica(number, sequences), number % len(cells))
            cells[member.cell].model.put_replica(member.model, sequences)
            self._due[draw.randrange(LOOK_HEARTBEATS * BEAT_MS)].append(member)

    def look(self, now_ms: int, tally: CellTally) -> None:
        """Let the replicas look whose turn it is."""
        due = self._due.pop(now_ms, None)
        if due is None:
            return
        for member in due:
            period = LOOK_HEARTBEATS + len(self._cells[member.cell].model.replicas) // REPLICAS_A_LOOK
            self._due[now_ms + period * BEAT_MS].append(member)
            if len(self._cells) > 1:
                self._decide(member, tally)

    def _decide(self, member: _Member, tally: CellTally) -> None:
        name = replica_name(member.model.number)
        here = with_member(self._load(self._cells[member.cell], sort=True), name, self._sequences)
        tally.messages["looks"] += 1
        target = None
        if leads(name, here):
            tally.messages["looks"] += len(self._cells) + 1
            loads = [here if state.number == member.cell else self._load(state, sort=False) for state in self._cells]
            idle = not member.model.held
            target = next_cell(name, member.cell, list(loads), size=self._sequences, idle=idle)
        before, member.target = member.target, target
        if (before is None) != (target is None):
            self._cells[member.cell].model.put_replica(member.model, 0 if target is not None else self._sequences)
        if target is not None and before is None:
            self._leaving.append(member)

    def _load(self, state: CellState, *, sort: bool) -> CellLoad:
        model = state.model
        ready = [each for each in model.replicas.values() if each.sequences]
        if sort:
            ready.sort(key=lambda each: (each.held, each.number))
        return CellLoad(
            model.waiting + model.running,
            model.waiting,
            sum(each.sequences for each in ready),
            tuple(replica_name(each.number) for each in ready),
            leaving=len(model.replicas) - len(ready),
        )

    def beat(self, tally: CellTally) -> None:
        """Let those that leave a cell and run nothing join the next."""
        for member in list(self._leaving):
            if member.target is None:
                self._leaving.remove(member)
            elif not member.model.held:
                self._leaving.remove(member)
                self._cells[member.cell].model.drop_replica(member.model)
                member.cell, member.target = member.target, None
                self._cells[member.cell].model.put_replica(member.model, self._sequences)
                tally.replicas_moved += 1
                tally.messages["replica moves"] += 4
