"""Where a replica is, and its account of its time, divided among the cells that it was in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cluster.queue.heartbeats import ReplicaTimes

_KINDS = ("total", "starting", "idle", "draining", "ended", "running", "standby")


@dataclass(slots=True, eq=False)
class Finishing:
    """Work of a cell that a replica has left and that it still runs."""

    cell: int
    running: frozenset[tuple[str, str]]
    """(request id, attempt) of all of it when the replica left."""
    answered_at: float
    """When that cell answered last, by the monotonic clock."""


@dataclass(slots=True)
class ReplicaPlace:
    """Cell of a replica, and what each cell was told of its time. A cell hears of the time in that cell only, as totals
    that grow, so the cells' lines of costs add up to the replica's time.
    """

    cell: int | None = None
    """None until it joins one."""
    finishes: Finishing | None = None
    """None where all that it runs is of its cell."""
    _before: dict[int, ReplicaTimes] = field(default_factory=dict)
    """What of the account is not a cell's, as far as it is not 0."""
    _told: dict[int, ReplicaTimes] = field(default_factory=dict)
    """Whole account as last told to each cell."""

    def own(self, cell: int, times: ReplicaTimes) -> ReplicaTimes:
        """Return a cell's part of an account."""
        before = self._before.get(cell)
        return times if before is None else _less(times, before)

    def last(self, cell: int) -> ReplicaTimes | None:
        """Return a cell's part as it was told last; None before that."""
        told = self._told.get(cell)
        return None if told is None else self.own(cell, told)

    def told(self, cell: int, times: ReplicaTimes) -> None:
        """Note that a cell was told a whole account."""
        self._told[cell] = times

    def enter(self, cell: int) -> None:
        """Begin to count time for another cell."""
        left = self._told.get(self.cell if self.cell is not None else 0)
        if left is not None and cell != self.cell:
            last = self._told.get(cell)
            self._before[cell] = left if last is None else _less(left, self.own(cell, last))
            self._told[cell] = left
        self.cell = cell


def _less(one: ReplicaTimes, other: ReplicaTimes) -> ReplicaTimes:
    return replace(one, **{kind: getattr(one, kind) - getattr(other, kind) for kind in _KINDS})
