"""Record of a pool's load: a mean per five minutes for four weeks, in a ring of fixed size."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator

SLOT_S = 300.0
DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
SLOTS = int(4 * WEEK_S / SLOT_S)
"""Slots that are kept. Four weeks show a week three times."""
_NEAR_SLOTS = 2
"""Slots on either side that a value is averaged over."""
_UNKNOWN = math.nan


class LoadRecord:
    """Ring of means. A slot without a value is unknown, not 0."""

    def __init__(self) -> None:
        self._values = array("f", [_UNKNOWN]) * SLOTS
        self._newest: int | None = None
        """Number of the newest slot, counted from the epoch of the pool's clock."""

    def put(self, slot: int, value: float) -> None:
        """Set a slot. Slots between it and the newest one stay unknown; one that is older than the ring is ignored."""
        if self._newest is None:
            self._newest = slot
        for passed in range(max(self._newest + 1, slot - SLOTS + 1), slot + 1):
            self._values[passed % SLOTS] = _UNKNOWN
        self._newest = max(self._newest, slot)
        if slot > self._newest - SLOTS:
            self._values[slot % SLOTS] = value

    def back_to(self, slot: int) -> None:
        """Forget the slots after this one: a clock that was ahead must not block the ring until it is that time."""
        if self._newest is None or self._newest <= slot:
            return
        for later in range(max(slot + 1, self._newest - SLOTS + 1), self._newest + 1):
            self._values[later % SLOTS] = _UNKNOWN
        # What is left of a ring that was further ahead than it is long is nothing.
        self._newest = slot if self._newest - slot < SLOTS else None

    def value(self, slot: int) -> float | None:
        """Return a slot's value; None where it is unknown."""
        if self._newest is None or not self._newest - SLOTS < slot <= self._newest:
            return None
        found = self._values[slot % SLOTS]
        return None if math.isnan(found) else found

    def around(self, at: float) -> float | None:
        """Return the load around a time, averaged over some ten minutes with weights that fall off; None where less
        than half of it is known.
        """
        place = at / SLOT_S - 0.5
        middle = math.floor(place)
        total = weights = known = 0.0
        for slot in range(middle - _NEAR_SLOTS + 1, middle + _NEAR_SLOTS + 1):
            weight = 1.0 - abs(slot - place) / _NEAR_SLOTS
            weights += weight
            if (value := self.value(slot)) is not None:
                known += weight
                total += weight * value
        return total / known if known > weights / 2 else None

    def known(self) -> Iterator[tuple[int, float]]:
        """Return the known slots with their values, oldest first."""
        if self._newest is None:
            return
        for slot in range(self._newest - SLOTS + 1, self._newest + 1):
            if (value := self.value(slot)) is not None:
                yield slot, value

    def to_bytes(self) -> bytes:
        """Return the ring's values; 32 KB."""
        return self._values.tobytes()

    @property
    def newest(self) -> int | None:
        """Number of the newest slot; None for an empty record."""
        return self._newest

    @classmethod
    def from_bytes(cls, newest: int | None, values: bytes) -> LoadRecord:
        """Read what `to_bytes` wrote.

        Raises:
            ValueError: the values are not those of a ring.
        """
        found = array("f")
        found.frombytes(values)
        if newest is not None and not isinstance(newest, int):
            raise ValueError(f"the newest slot is a number, got {newest!r}")
        if len(found) != SLOTS:
            raise ValueError(f"a record of load has {SLOTS} values, got {len(found)}")
        record = cls()
        record._values, record._newest = found, newest
        return record
