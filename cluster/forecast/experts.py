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


def _shape(period_s: float, periods: int) -> Expert:
    """Scale the change at the same time of earlier periods to the present level. It counts by how much it exceeds the
    scatter between periods: where they do not agree there is no pattern, and the level stays.
    """

    def expect(past: KnownLoad, ahead: int) -> float | None:
        # The level is that of its middle.
        then, level = past.at - 30.0 * LEVEL_MINUTES, past.lately(LEVEL_MINUTES)
        changes = []
        for number in range(1, periods + 1):
            was = past.record.around(then - number * period_s)
            became = past.record.around(past.at + 60.0 * ahead - number * period_s)
            if was and became:
                changes.append(math.log(became / was))
        if not changes:
            return None
        mean = statistics.fmean(changes)
        spread = (USUAL_SCATTER**2 + sum((each - mean) ** 2 for each in changes)) / len(changes)
        doubt = spread / len(changes)
        return _bounded(level * math.exp(mean * mean**2 / (mean**2 + doubt)) if mean else level, level)

    return expect


def _bounded(value: float, level: float) -> float:
    return min(MOST_CHANGE * level, max(level / MOST_CHANGE, value))


PRESENT = "present"
LEVEL = f"{LEVEL_MINUTES} minutes"
"""The level that shapes are scaled to."""
SHAPES = ("time of day", "time of week")
EXPERTS: Mapping[str, Expert] = {
    PRESENT: _present,
    "5 minutes": _level(5),
    LEVEL: _level(LEVEL_MINUTES),
    "20 minutes": _level(20),
    "40 minutes": _level(40),
    "trend of 20 minutes": _trend(20),
    "trend of 40 minutes": _trend(40),
    SHAPES[0]: _shape(DAY_S, 7),
    SHAPES[1]: _shape(WEEK_S, 3),
}
"""Experts by name. Today's policy is one of them, so a blend that learns can't be worse for long."""
