"""A histogram that merges without loss. The bounds of its buckets never depend on the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

GROWTH = 1.02
"""Ratio of a bucket's bounds. A percentile is off by at most 1 %."""
LEAST = 1e-6
"""Bound below which all values share a bucket; a microsecond if values are seconds."""
_SCALE = 1.0 / math.log(GROWTH)
_SHIFT = math.log(LEAST)


class Histogram:
    """Counts of values of at least 0."""

    __slots__ = ("buckets", "count", "largest", "total")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.largest = 0.0

    def add(self, value: float) -> None:
        bucket = int((math.log(value) - _SHIFT) * _SCALE) + 1 if value > LEAST else 0
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.count += 1
        self.total += value
        if value > self.largest:
            self.largest = value

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    @property
    def mean(self) -> float | None:
        """Exact mean; None where nothing was counted."""
        return self.total / self.count if self.count else None

    def percentile(self, percent: float, *, upper: bool = False) -> float | None:
        """Return the value that `percent` (0 to 100) of the values do not exceed; None where nothing was counted.

        Where two neighbours are such values, as the middle two of six are a median, return the lower one, or with
        `upper` the upper one, as Locust does.
        """
        if not self.count:
            return None
        exact = self.count * percent / 100
        rank = min(self.count, math.floor(exact + 1e-9) + 1) if upper else max(1, math.ceil(exact - 1e-9))
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                return self._middle(bucket)
        return self.largest

    def curve(self, most: int = 80) -> list[tuple[float, float]]:
        """Return the distribution: values, rising, and the part of all values up to each; about `most` pairs."""
        pairs: list[tuple[float, float]] = []
        seen, last = 0, 0.0
        for bucket in sorted(self.buckets):
            before, seen = seen, seen + self.buckets[bucket]
            if not pairs:
                pairs.append((self._middle(bucket), before / self.count))
            if seen / self.count - last >= 1 / most or seen == self.count:
                last = seen / self.count
                pairs.append((self._middle(bucket), last))
        return pairs

    def _middle(self, bucket: int) -> float:
        return min(LEAST * GROWTH ** (bucket - 0.5) if bucket else 0.0, self.largest)

    def summary(self) -> dict[str, float | None]:
        """Return the usual figures, in the unit of the values."""
        named = {f"p{percent:g}": self.percentile(percent) for percent in (50, 90, 95, 99, 99.9)}
        return {"mean": self.mean, **named, "max": self.largest if self.count else None}

    def to_wire(self) -> list[Any]:
        """Return plain values for `from_wire`."""
        return [self.count, self.total, self.largest, [part for pair in self.buckets.items() for part in pair]]

    @classmethod
    def from_wire(cls, wire: Sequence[Any]) -> Histogram:
        made = cls()
        made.count, made.total, made.largest, pairs = wire
        made.buckets = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return made
