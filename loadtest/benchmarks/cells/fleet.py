"""Replicas of a simulated pool, which look at all cells as production's do and move by the same rule."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass

from cluster.queue.cells.member import LOOK_HEARTBEATS, REPLICAS_A_LOOK
from cluster.queue.cells.moving import CellLoad, first_cell, leads, next_cell, with_member
from loadtest.benchmarks.cells.model_line import ModelReplica
from loadtest.benchmarks.cells.routers import CellState
from loadtest.benchmarks.cells.tally import CellTally
from loadtest.benchmarks.cells.traffic import replica_name

BEAT_MS = 1_000


LEASE_BEATS = 4
"""Heartbeats without an answer after which a replica takes its cell for away."""


@dataclass(slots=True, eq=False)
class _Member:
    model: ModelReplica
    cell: int
    target: int | None = None
    finishes: tuple[ModelReplica, int] | None = None
    """What it is in a cell that it has left and whose work it still runs, and that cell."""
    elsewhere: int = 0
    """Slots that this takes, as its own cell was told last."""
    up: bool = True
    """Whether it takes work; one that is removed finishes what it runs."""
    unanswered: int = 0
    """Heartbeats that its cell did not answer."""


class SimulatedFleet:
    """All replicas."""

    def __init__(self, cells: list[CellState], replicas: int, sequences: int, seed: int) -> None:
        self._cells = cells
        self._sequences = sequences
        draw = random.Random(seed)
        self._due = defaultdict[int, list[_Member]](list)
        """Looks by moment."""
        self._leaving: list[_Member] = []
        self._finishing: list[_Member] = []
        """Replicas that still run what a cell gave them that they have left."""
        self._removed: list[_Member] = []
        """Replicas that finish what they run."""
        self._draining = [set[int]() for _ in cells]
        """Their numbers by cell."""
        self._gone: dict[int, list[ModelReplica]] = defaultdict(list)
        """Replicas that left a cell that was away, by cell."""
        self._members: list[_Member] = []
        for number in range(replicas):
            member = _Member(ModelReplica(number, sequences), number % len(cells))
            cells[member.cell].model.put_replica(member.model, sequences)
            self._due[draw.randrange(LOOK_HEARTBEATS * BEAT_MS)].append(member)
            self._members.append(member)

    def look(self, now_ms: int, tally: CellTally) -> None:
        """Let the replicas look whose turn it is."""
        due = self._due.pop(now_ms, None)
        if due is None:
            return
        for member in due:
            period = LOOK_HEARTBEATS + len(self._cells[member.cell].model.replicas) // REPLICAS_A_LOOK
            self._due[now_ms + period * BEAT_MS].append(member)
            if len(self._cells) > 1 and member.up and not member.finishes and not self._cells[member.cell].away:
                self._decide(member, tally)

    def _decide(self, member: _Member, tally: CellTally) -> None:
        tally.messages["looks"] += 1
        if not self._may_lead(member):
            self._aim(member, None)
            return
        name = replica_name(member.model.number)
        here = with_member(self._load(self._cells[member.cell]), name, self._sequences)
        target = None
        if leads(name, here):
            tally.messages["looks"] += len(self._cells) + 1
            idle = not member.model.held
            target = next_cell(name, member.cell, self._loads(member.cell, here), size=self._sequences, idle=idle)
        self._aim(member, target)

    def _may_lead(self, member: _Member) -> bool:
        """Return whether no other replica of the cell holds fewer slots: else `leads` is false of its whole load, which
        takes a hundred times as long to sum up.
        """
        own = member.model
        if own.sequences:
            for each in self._cells[member.cell].model.replicas.values():
                if each.held <= own.held and each.sequences and (each.held, each.number) < (own.held, own.number):
                    return False
        return True

    def _aim(self, member: _Member, target: int | None) -> None:
        before, member.target = member.target, target
        if (before is None) != (target is None):
            self._cells[member.cell].model.put_replica(member.model, 0 if target is not None else self._sequences)
        if target is not None and before is None:
            self._leaving.append(member)

    def _loads(self, own: int, here: CellLoad | None) -> list[CellLoad | None]:
        """Return the loads of all cells; None for those that do not answer."""
        return [None if state.away else here if state.number == own else self._load(state) for state in self._cells]

    def _load(self, state: CellState) -> CellLoad:
        """Return a cell's load. Of its replicas the first is the one with the fewest entries, as in production; the
        order of the others decides nothing.
        """
        model = state.model
        ready = [each for each in model.replicas.values() if each.sequences]
        names = [replica_name(each.number) for each in ready]
        if ready:
            first = replica_name(min(ready, key=lambda each: (each.held, each.number)).number)
            names.remove(first)
            names.insert(0, first)
        return CellLoad(
            model.waiting + sum(each.held for each in model.replicas.values()),
            model.waiting,
            sum(each.sequences for each in ready),
            tuple(names),
            leaving=tuple(
                replica_name(number)
                for number, each in model.replicas.items()
                if not each.sequences and number not in self._draining[state.number]
            ),
        )

    def beat(self, tally: CellTally) -> None:
        """Let those that leave a cell join the next one, and those that are removed and run nothing go."""
        for state in self._cells:
            if state.away:
                self._note_silence(state, tally)
        for member in list(self._finishing):
            self._finish(member)
        for member in list(self._leaving):
            if member.target is None or not member.up:
                self._leaving.remove(member)
            elif not self._cells[member.cell].away and not self._cells[member.target].away:
                self._leaving.remove(member)
                self._leave(member)
                self._enter(member, member.target, tally)
        for member in list(self._removed):
            if not member.model.held and not self._cells[member.cell].away:
                self._removed.remove(member)
                self._draining[member.cell].discard(member.model.number)
                self._cells[member.cell].model.drop_replica(member.model)

    def _leave(self, member: _Member) -> None:
        """Let a replica leave its cell, or begin to where it still runs something. Its next cell counts that against
        its room.
        """
        former = member.model
        member.model = ModelReplica(former.number, self._sequences, former.held)
        if former.held:
            member.finishes, member.elsewhere = (former, member.cell), former.held
            self._finishing.append(member)
        else:
            self._cells[member.cell].model.drop_replica(former)

    def _finish(self, member: _Member) -> None:
        """Let a replica's cell hear how much of another one's work it still runs."""
        if member.finishes is None:
            return
        former, cell = member.finishes
        if self._cells[cell].away or self._cells[member.cell].away:
            return
        member.model.held -= member.elsewhere - former.held
        member.elsewhere = former.held
        self._cells[member.cell].model.put_replica(member.model, member.model.sequences)
        if not former.held:
            self._finishing.remove(member)
            member.finishes = None
            self._cells[cell].model.drop_replica(former)

    def _enter(self, member: _Member, target: int, tally: CellTally) -> None:
        member.cell, member.target = target, None
        self._cells[member.cell].model.put_replica(member.model, self._sequences)
        tally.replicas_moved += 1
        tally.messages["replica moves"] += 4

    # --- a cell that does not answer ----------------------------------------------------------------------------------

    def _note_silence(self, state: CellState, tally: CellTally) -> None:
        """Let the replicas of a cell that is away look elsewhere once they run nothing."""
        ended = Counter(entry.on.number for entry in state.unreleased if entry.on is not None)
        for member in self._members:
            if member.cell != state.number or not member.up or member.finishes:
                continue
            member.unanswered += 1
            if member.unanswered <= LEASE_BEATS or member.model.held > ended[member.model.number]:
                continue
            tally.messages["looks"] += len(self._cells) + 1
            name = replica_name(member.model.number)
            target = next_cell(name, member.cell, self._loads(-1, None), size=self._sequences, idle=True)
            if target is not None:
                self._gone[state.number].append(member.model)
                member.model = ModelReplica(member.model.number, self._sequences)
                self._enter(member, target, tally)

    def came_back(self, state: CellState) -> None:
        """Let a cell that answers again hear which replicas have left it."""
        for model in self._gone[state.number]:
            state.model.put_replica(model, 0)
        for member in self._members:
            member.unanswered = 0

    def forget_gone(self, state: CellState) -> None:
        """Let a cell forget the replicas that have left it, of which it has heard that nothing runs there."""
        for model in self._gone.pop(state.number, []):
            state.model.drop_replica(model)

    # --- replicas that go and come ------------------------------------------------------------------------------------

    def resize(self, replicas: int, tally: CellTally) -> None:
        """Remove replicas, or add them again, so that there are this many."""
        up = [member for member in self._members if member.up]
        for member in up[replicas:]:
            member.up, member.target = False, None
            self._cells[member.cell].model.put_replica(member.model, 0)
            self._draining[member.cell].add(member.model.number)
            self._removed.append(member)
        for member in [member for member in self._members if not member.up][: max(0, replicas - len(up))]:
            if member in self._removed:
                self._removed.remove(member)
                self._draining[member.cell].discard(member.model.number)
                self._cells[member.cell].model.put_replica(member.model, self._sequences)
            else:
                tally.messages["looks"] += len(self._cells)
                member.cell = first_cell(replica_name(member.model.number), self._loads(-1, None))
                member.model = ModelReplica(member.model.number, self._sequences)
                self._cells[member.cell].model.put_replica(member.model, self._sequences)
            member.up = True
