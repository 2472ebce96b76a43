"""How many cells a pool has, as one process knows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.queue.cells.names import MOST_CELLS

SETTLE_S = 10.0
"""How long after a change of the number clients' keys and tenants with a quota stay in their former cells: all routers
know of the change by then, so no two look for one key in different cells."""
REREAD_S = 2.0
"""Time between two looks of a router at the record of the number: the newest write holds for all routers."""


@dataclass(frozen=True, slots=True)
class CellRecord:
    """What the store has on record about a pool's cells."""

    count: int
    before: int
    """Number before the last change."""
    most: int
    """Most cells that the pool ever had: the ledgers of those are read for as long as they have lines."""
    age_ms: int
    """Pool time since the number changed; -1 where it never did."""


class Layout:
    """Number of cells of a pool, now and before. Its loop changes it, and other threads read it."""

    def __init__(self, count: int = 1, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`count` of 0 is for processes that do not know the pool's settings: they take the number on record."""
        _check(count or 1)
        self.told = count
        """Number by the settings; 0 where only the store knows."""
        self.count = max(1, count)
        """Cells that new requests may go to."""
        self.span = self.count
        """Cells that may have anything of the pool."""
        self.homes = self.count
        """Cells among which clients' keys and tenants with a quota have their homes."""
        self.sure = True
        """Whether the settings are those in force: what a registry has may be newer, until it was read."""
        self.known = False
        """Whether the store's record was read, by a process that knows the pool's settings."""
        self._noted = False
        """Whether the store has the number of the settings on record, or had it."""
        self._read_at: float | None = None
        """When the record was read; None where it must be read now."""
        self._clock = clock
        self._changed_at: float | None = None

    def change(self, count: int) -> None:
        """Take another number from the settings."""
        _check(count)
        if count != self.told:
            self.settle()
            if count != self.count:
                self._changed_at = self._clock()
            self.told = self.count = count
            self.span = max(self.span, count)
            self._noted, self._read_at = False, None

    def confirm(self) -> None:
        """Note that the settings are those in force."""
        if not self.sure:
            self.sure, self._read_at = True, None

    def lost(self) -> None:
        """Note that the store may have lost its record."""
        self._read_at = None

    @property
    def suffices(self) -> bool:
        """Whether a process that can't read the record may use the other cells: it knows them by settings in force."""
        return self.sure and self.told > 1

    @property
    def is_due(self) -> bool:
        """Whether the record should be read."""
        return self._read_at is None or self._clock() - self._read_at >= REREAD_S

    def question(self) -> tuple[int, int]:
        """Return the arguments of `Cell.cells`: the number of the settings once they are sure, then what the record
        had.
        """
        if not self.told or not self.sure:
            return 0, 0
        return (self.count, self.span) if self._noted else (self.told, 0)

    def heard(self, record: CellRecord) -> None:
        """Take the store's record: another router may have noted a newer number."""
        self.known, is_news = bool(self.told), not self._noted
        self._noted = self.known and self.sure
        self._read_at = self._clock()
        self.span = max(self.span, record.most)
        self.count = max(1, record.count)
        if record.age_ms >= 0:
            # The store's word, so that all routers settle at one time.
            self._changed_at = self._clock() - record.age_ms / 1000
            if self.changed_s() < SETTLE_S:
                self.homes = record.before
        elif not self.told:
            self.homes = self.count
        elif is_news:
            # The pool is new: homes have nothing to wait for, here as at the routers that only read this.
            self._changed_at = None
        self.settle()

    def follow(self, record: CellRecord) -> None:
        """Take the store's record in a process that notes nothing there: the number only where that changed after this
        process was told its own, or where neither ever changed and routers have other settings.
        """
        self.span = max(self.span, record.most)
        if record.age_ms < 0:
            # Without a record the number is 1, and says nothing.
            if self._changed_at is None and record.most > 1:
                self.count = record.count
            return
        at = self._clock() - record.age_ms / 1000
        if record.count == self.count or self._changed_at is None or at > self._changed_at:
            self.count, self._changed_at = record.count, at

    def settle(self) -> None:
        """Move the homes to the cells of now, once all routers know them."""
        if self.homes != self.count and self.changed_s() >= SETTLE_S:
            self.homes = self.count

    def changed_s(self) -> float:
        """Return for how long the number has been what it is, in seconds."""
        return float("inf") if self._changed_at is None else self._clock() - self._changed_at


def _check(count: int) -> None:
    if not 1 <= count <= MOST_CELLS:
        raise ValueError(f"cells must be from 1 to {MOST_CELLS}, got {count}")
