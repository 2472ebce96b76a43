"""A pool of cells on a virtual clock of milliseconds.

Cells are models; what routers and replicas decide is production's code. A grant reaches its router at once.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable

from loadtest.benchmarks.cells.fleet import BEAT_MS, SimulatedFleet
from loadtest.benchmarks.cells.model_cell import ModelCell
from loadtest.benchmarks.cells.model_line import CellEntry
from loadtest.benchmarks.cells.phases import Moment
from loadtest.benchmarks.cells.routers import CellState, SimulatedRouter
from loadtest.benchmarks.cells.setup import CLASS_SHARES, PREFILL_MS, PoolSize
from loadtest.benchmarks.cells.tally import CellTally
from loadtest.benchmarks.cells.traffic import PoolTraffic


class PoolSimulation:
    """One run."""

    def __init__(self, size: PoolSize) -> None:
        self.size = size
        self.traffic = PoolTraffic(size)
        self._now = 0
        self._caller = 0
        self._cells = [self._cell(number) for number in range(size.cells)]
        self._fleet = SimulatedFleet(self._cells, size.replicas, size.sequences, size.seed)
        names = tuple(f"router-{number}" for number in range(size.routers))
        self._routers = [SimulatedRouter(number, self._cells, names, size.seed) for number in range(size.routers)]
        self._ends = defaultdict[int, list[tuple[CellEntry, int]]](list)
        """Entries that end, with their cells, by moment."""
        self._beats = defaultdict[int, list[SimulatedRouter]](list)
        """Routers by the part of a second at which they send heartbeats."""
        self.arrived = 0
        """Requests of the whole run, the warm-up included."""
        self._last: dict[int, int] = {}
        """Replica of each tenant's last request."""
        self.tally = self._new_tally()
        self.parts: list[CellTally] = []
        """Phases that have ended."""
        self._phase = -1
        draw = random.Random(size.seed)
        for router in self._routers:
            router.beat(0)
            self._beats[draw.randrange(BEAT_MS)].append(router)

    def _new_tally(self) -> CellTally:
        mean = 1 / self.size.tenants
        return CellTally(self.size, small=[part < mean for part in self.traffic.part.tolist()])

    def _cell(self, number: int) -> CellState:
        return CellState(number, ModelCell(lambda entry: self._granted(number, entry), shares=CLASS_SHARES))

    @property
    def running(self) -> int:
        """Requests that run now."""
        return sum(state.model.running for state in self._cells)

    def run(self, tick: Callable[[int], None] = lambda _: None) -> CellTally:
        """Simulate; `tick` is called with each second that has passed."""
        size = self.size
        for second in range(size.warm_up + size.seconds):
            moment = self.traffic.moment(second)
            if moment is not None and moment.number != self._phase:
                self._begin(moment)
            self._second(second)
            tick(second + 1)
        self._close(last=True)
        return self.tally

    def _begin(self, moment: Moment) -> None:
        """Begin a phase."""
        if self._phase >= 0:
            self._close(last=False)
        self._phase = moment.number
        self.tally = self._new_tally()
        for state in self._cells:
            for entry in state.model.entries():
                self.tally.waits_from_before(entry)
        last = self._cells[-1]
        if last.away and not moment.phase.away:
            self._come_back(last)
        last.away = moment.phase.away and len(self._cells) > 1
        self._fleet.resize(round(moment.phase.replicas * self.size.replicas), self.tally)

    def _close(self, *, last: bool) -> None:
        for state in self._cells:
            for entry in state.model.entries():
                self.tally.waits_still(entry, self._now - entry.arrived_ms, last=last)
        self.parts.append(self.tally)

    def whole(self) -> CellTally:
        """Return what was counted in all phases until now; nothing in the warm-up."""
        found, every = self._new_tally(), self.tallies()
        if every:
            found.carried = every[0].carried
        for part in every:
            found.add(part)
        return found

    def tallies(self) -> list[CellTally]:
        """Return what was counted in each phase until now, the one under way included; the warm-up is none."""
        return self.parts if self._phase < 0 or self.tally in self.parts[-1:] else [*self.parts, self.tally]

    def _come_back(self, state: CellState) -> None:
        """Let a cell answer again: it hears what has ended meanwhile."""
        state.away = False
        self._fleet.came_back(state)
        ended, state.unreleased = state.unreleased, []
        for entry in ended:
            self._end(entry, state.number)
        self._fleet.forget_gone(state)

    def _second(self, second: int) -> None:
        size, messages = self.size, self.tally.messages
        arrivals = self.traffic.second(second)
        following = next(arrivals, None)
        for moment in range(second * BEAT_MS, (second + 1) * BEAT_MS):
            self._now = moment
            for entry, cell in self._ends.pop(moment, ()):
                self._end(entry, cell)
            for router in self._beats.get(moment % BEAT_MS, ()):
                self._beat(router)
            self._fleet.look(moment, self.tally)
            while following is not None and following[0] <= moment:
                self._arrive(following[1], follows=following[2])
                following = next(arrivals, None)
        self._fleet.beat(self.tally)
        messages["router heartbeats"] += size.routers * (size.cells + (size.cells > 1))
        messages["replica heartbeats"] += size.replicas
        self._look()

    # --- events -------------------------------------------------------------------------------------------------------

    def _arrive(self, entry: CellEntry, *, follows: bool) -> None:
        if follows and (last := self._last.get(entry.tenant)) is not None:
            entry.preferred = (last,)
        self.arrived += 1
        self.tally.came(entry)
        cell = self._routers[entry.router].place(entry)
        if self._cells[cell].away:
            self.tally.messages["submits"] += 1
            self.tally.unavailable += 1
            return
        self._submit(cell, entry, "submits")

    def _submit(self, cell: int, entry: CellEntry, kind: str) -> None:
        self.tally.messages[kind] += 1
        self._caller = entry.router
        self._cells[cell].model.submit(entry)
        if entry.waits:
            self._routers[entry.router].waits(cell, entry)

    def _granted(self, cell: int, entry: CellEntry) -> None:
        replica = entry.on
        if replica is None:
            raise RuntimeError("an entry without a replica was granted")
        router = self._routers[entry.router]
        router.got_slot(cell, entry)
        self._cells[cell].granted[entry.request_class] += 1
        self._last[entry.tenant] = replica.number
        if entry.router != self._caller:
            # At most: one look at the mail may bring several.
            self.tally.messages["mail"] += 1
        self.tally.got_slot(entry, self._now - entry.arrived_ms)
        lasts = entry.prompt * PREFILL_MS + entry.output * self.size.itl_ms
        self._ends[self._now + max(1, round(lasts))].append((entry, cell))

    def _end(self, entry: CellEntry, cell: int) -> None:
        if self._cells[cell].away:
            self._cells[cell].unreleased.append(entry)
            return
        self.tally.messages["releases"] += 1
        self.tally.ended += 1
        self._caller = entry.router
        self._cells[cell].model.release(entry, entry.output)

    def _beat(self, router: SimulatedRouter) -> None:
        self._caller = router.number
        router.beat(self._now)
        for entry, source, target in router.moves():
            self.tally.messages["moves"] += 1
            self._caller = router.number
            if not self._cells[source].model.take_out(entry):
                continue
            router.got_slot(source, entry)
            entry.moved += 1
            self.tally.moved += 1
            self.tally.most_moved = max(self.tally.most_moved, entry.moved)
            self._submit(target, entry, "moves")

    def _look(self) -> None:
        """Note how evenly the cells are used."""
        answer = [each for each in self._cells if not each.away]
        loads = [(each.model.waiting, each.model.running, self._room(each)) for each in answer]
        free = sum(max(0, room - running) for _, running, room in loads)
        self.tally.idle_beside_a_line.append(
            min(free, sum(waiting for waiting, _, _ in loads)) / (self.size.replicas * self.size.sequences)
        )
        pressures = [(waiting + running) / room for waiting, running, room in loads if room]
        self.tally.spread.append(max(pressures) - min(pressures))
        self.tally.busy.append(sum(each.model.running for each in self._cells) / max(1, sum(r for _, _, r in loads)))

    @staticmethod
    def _room(state: CellState) -> int:
        return sum(each.sequences for each in state.model.replicas.values())
