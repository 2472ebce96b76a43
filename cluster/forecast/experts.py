"""Experts: simple forecasts of the load, each right under other circumstances. None of them is believed unseen."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cluster.forecast.load_record import DAY_S, WEEK_S, LoadRecord

MOST_CHANGE = 4.0
"""Largest factor on the present load that an expert may expect; its inverse is the smallest."""
LEVEL_MINUTES = 10
"""Minutes of the present load that a shape of earlier days is scaled to."""
USUAL_SCATTER = 0.15
"""Scatter of the change between periods before any was seen, as a logarithm."""


@dataclass(frozen=True, slots=True)
class KnownLoad:
    """What experts know."""

    at: float
    """Now, seconds of the pool's clock."""
    minutes: Sequence[float]
    """Mean load of each minute of the last hours, oldest first; at least one."""
    record: LoadRecord
    start_minutes: int
    """Cold start."""

    def lately(self, minutes: int) -> float:
        """Return the mean of the last minutes."""
        return statistics.fmean(self.minutes[-minutes:])


Expert = Callable[[KnownLoad, int], float | None]
"""Forecast of the load in so many minutes; None where it knows nothing."""


def _present(past: KnownLoad, ahead: int) -> float | None:
    """Expect what today's policy averages over: the last cold start."""
    return past.lately(past.start_minutes)


def _level(minutes: int) -> Expert:
    return lambda past, ahead: past.lately(minutes) if len(past.minutes) >= minutes else None


def _trend(minutes: int) -> Expert:
    """Continue the straight line through the last minutes."""

    def expect(past: KnownLoad, ahead: int) -> float | None:
        values = past.minutes[-minutes:]
        if len(values) < minutes:
            return None
        middle = (minutes - 1) / 2
        mean = statistics.fmean(values)
        slope = sum((place - middle) * value for place, value in enumerate(values)) * 12 / (minutes * (minutes**2 - 1))
        return _bounded(mean + slope * (middle + ahead), mean)

    return expect


@dataclass(frozen=True, slots=True)
class DailyShape:
    """Expert that scales the change at the same time of earlier periods to the present level."""

    period_s: float
    periods: int
    """Earlier periods that are looked at."""

    def change(self, past: KnownLoad, ahead: int, minutes: int) -> float | None:
        """Return the factor on the mean of the last `minutes` that earlier periods foretell in `ahead` minutes. It
        counts by how much it exceeds the scatter between periods: where they do not agree there is no pattern. None
        where no period is known.
        """
        # A mean is that of its middle.
        then, soon = past.at - 30.0 * minutes, past.at + 60.0 * ahead
        changes = []
        for number in range(1, self.periods + 1):
            was = past.record.around(then - number * self.period_s)
            became = past.record.around(soon - number * self.period_s)
            if was and became:
                changes.append(math.log(became / was))
        if not changes:
            return None
        mean = statistics.fmean(changes)
        spread = (USUAL_SCATTER**2 + sum((each - mean) ** 2 for each in changes)) / len(changes)
        doubt = spread / len(changes)
        return _bounded(math.exp(mean * mean**2 / (mean**2 + doubt)), 1.0) if mean else 1.0

    def __call__(self, past: KnownLoad, ahead: int) -> float | None:
        change = self.change(past, ahead, LEVEL_MINUTES)
        return None if change is None else change * past.lately(LEVEL_MINUTES)


def _bounded(value: float, level: float) -> float:
    return min(MOST_CHANGE * level, max(level / MOST_CHANGE, value))


PRESENT = "present"
LEVEL = f"{LEVEL_MINUTES} minutes"
"""The level that shapes are scaled to."""
SHAPES: Mapping[str, DailyShape] = {"time of day": DailyShape(DAY_S, 7), "time of week": DailyShape(WEEK_S, 3)}
EXPERTS: Mapping[str, Expert] = {
    PRESENT: _present,
    "5 minutes": _level(5),
    LEVEL: _level(LEVEL_MINUTES),
    "20 minutes": _level(20),
    "40 minutes": _level(40),
    "trend of 20 minutes": _trend(20),
    "trend of 40 minutes": _trend(40),
    **SHAPES,
}
"""Experts by name. Today's policy is one of them, so a blend that learns can't be worse for long."""
