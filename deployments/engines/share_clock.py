"""A clock that runs slower when more sequences share the engine."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

_REMEMBERED_STEPS = 512


class ShareClock:
    """Running total of step durations, each divided by the number of sequences in the step, in seconds.

    The difference between two readings is the engine time of a sequence that was in the batch all the time between.
    """

    def __init__(self) -> None:
        self._total = 0.0
        # Pairs (time, total at that time). Between two of them the clock ran evenly.
        self._moments: deque[float] = deque(maxlen=_REMEMBERED_STEPS)
        self._totals: deque[float] = deque(maxlen=_REMEMBERED_STEPS)

    def resume(self, now: float) -> None:
        """Start to count at `now`. The idle time before it is charged to no sequence."""
        # The times come from two processes, and may arrive out of order.
        self._append(max(now, self._moments[-1]) if self._moments else now)

    def step(self, now: float, sequences: int) -> float:
        """Count the step that ended at `now` with this many sequences. Return its duration, 0 for an unknown start."""
        if self._moments:
            # The times come from two processes, and may arrive out of order.
            now = max(now, self._moments[-1])
        duration = now - self._moments[-1] if self._moments else 0.0
        if sequences > 0:
            self._total += duration / sequences
        self._append(now)
        return duration

    def total(self) -> float:
        """Return the reading after the last step."""
        return self._total

    def at(self, moment: float) -> float:
        """Return the reading at `moment`, as far back as steps are remembered."""
        if not self._moments or moment >= self._moments[-1]:
            return self._total
        after = bisect_right(self._moments, moment)
        if after == 0:
            return self._totals[0]
        start, end = self._moments[after - 1], self._moments[after]
        before = self._totals[after - 1]
        return before + (self._totals[after] - before) * (moment - start) / (end - start)

    def _append(self, now: float) -> None:
        self._moments.append(now)
        self._totals.append(self._total)
