"""Gaps between tokens of a long run, counted by their length."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from loadtest.simulate.pool.fleet import Fleet

Array: TypeAlias = "np.ndarray[Any, Any]"

KEPT_STEPS = 1_500_000
"""Steps of a pool that are kept as they are, in about 60 MB. A longer run counts earlier ones in bins."""
_WIDTH = math.log(1.001)
"""Of a bin, as a logarithm: lengths in one bin differ by a thousandth at most."""


class GapTally:
    """Counts of gaps in bins. Each bin also has their sum, so the mean is exact."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[float, float]] = {}

    def take(self, fleet: Fleet) -> None:
        """Count the steps of replicas that nothing needs any more, if there are many."""
        members = [*fleet.gone, *fleet.members.values()]
        if sum(len(member.replica.log.seconds) for member in members) <= KEPT_STEPS:
            return
        for member in members:
            log = member.replica.log
            needed = len(log) if member.removed_at is not None else member.replica.needed_from
            if member.fast is not None and member.removed_at is None:
                needed = min(needed, member.steps_seen)
            seconds, decoded = log.drop(needed)
            self._add(np.asarray(seconds), np.asarray(decoded, dtype=float))

    def _add(self, seconds: Array, counted: Array) -> None:
        used = (counted > 0) & (seconds > 0)
        if not used.any():
            return
        seconds, counted = seconds[used], counted[used]
        places, inverse = np.unique(np.floor(np.log(seconds) / _WIDTH).astype(int), return_inverse=True)
        counts, sums = (np.bincount(inverse, weights=each) for each in (counted, counted * seconds))
        for place, count, total in zip(places.tolist(), counts.tolist(), sums.tolist(), strict=True):
            before = self._counts.get(place, (0.0, 0.0))
            self._counts[place] = before[0] + count, before[1] + total

    @property
    def gaps(self) -> tuple[Array, Array]:
        """Mean length of each bin, and the number of gaps in it."""
        counts = np.array([count for count, _ in self._counts.values()])
        sums = np.array([total for _, total in self._counts.values()])
        return (sums / counts, counts) if len(counts) else (np.zeros(0), np.zeros(0))
