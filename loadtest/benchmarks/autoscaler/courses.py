"""Courses of a load over weeks. Policies that look ahead know what came before a run, and serve a part of an hour."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cluster.forecast.load_record import DAY_S, WEEK_S
from cluster.forecast.pool_forecast import PoolForecast

SERIES = "servegen_language_m-large_rate_10min.csv"
SERIES_ROW_S = 600.0
_MOST_PAST_S = 9 * DAY_S
"""Longest past that a record is made of. Making one took 15 to 37 s."""
_MINUTE_S = 60.0
_BURSTS_PER_MINUTE = 2
"""The rate of drawn loads is off by a quarter in each half minute; see `scenarios`."""
_LENGTHS = 2.0
"""Variance of a minute's work over that of as many equal requests, by their lengths and chance."""


@dataclass(frozen=True, slots=True)
class Course:
    """Load over days and weeks."""

    rate: Callable[[float], float]
    """Load so many seconds after the counted time begins, in any unit; negative ones are the past."""
    at: float
    """Time of a clock, at which the counted time begins. Days and weeks are those of this clock."""
    past_s: float
    """Seconds of the past that are known."""


CourseMaker = Callable[[random.Random, float, Path], Course]
"""Maker of a course from a random source, the counted seconds, and the folder of traces."""


@cache
def series_rates(path: Path) -> list[float]:
    """Read the rates of the 14-day series."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    column = next(name for name in rows[0] if "rate" in name.lower() or "req" in name.lower())
    return [float(row[column]) for row in rows]


def second_week(rnd: random.Random, seconds: float, data: Path) -> Course:
    """Take a window of the 14-day series' second week, at its own pace, after all that came before."""
    rates = series_rates(data / SERIES)
    at = rnd.uniform(WEEK_S, SERIES_ROW_S * (len(rates) - 2) - seconds)

    def rate(after_s: float) -> float:
        place = max(0.0, min(len(rates) - 1.001, (at + after_s) / SERIES_ROW_S))
        low = int(place)
        return (1 - place + low) * rates[low] + (place - low) * rates[low + 1]

    return Course(rate, at, min(at, _MOST_PAST_S))


RISE_S = 300.0
_RISE_AT_S = 600.0
_DAYS = 6


def office_hours(rnd: random.Random, seconds: float, data: Path) -> Course:
    """Make a load that triples within five minutes at nine, and falls as fast at five, for six days. The counted time
    begins some ten minutes before nine.
    """
    at = _DAYS * DAY_S + 9 * 3600.0 - _RISE_AT_S + rnd.uniform(-120.0, 120.0)

    def rate(after_s: float) -> float:
        since_nine = (at + after_s) % DAY_S - 9 * 3600.0
        return 1.0 + 2.0 * max(0.0, min(1.0, since_nine / RISE_S, (8 * 3600.0 + RISE_S - since_nine) / RISE_S))

    return Course(rate, at, _DAYS * DAY_S)


def record_of(course: Course, work: float, request_work: float, cold_start_s: float, seed: int) -> PoolForecast:
    """Return the record of what came before a run.

    Args:
        course: the load.
        work: load per unit of the course's rate, in the record's unit.
        request_work: mean load of a request, in the same unit and second.
        cold_start_s: how far the record's forecasts looked ahead.
        seed: of the past's scatter, which is that of drawn loads.
    """
    rnd, forecast = random.Random(f"past {seed}"), PoolForecast()
    for number in range(int(course.past_s // _MINUTE_S), 0, -1):
        after_s = -_MINUTE_S * number
        expected = work * course.rate(after_s)
        variance = 1 / (16.0 * _BURSTS_PER_MINUTE) + _LENGTHS * request_work / max(1e-9, expected * _MINUTE_S)
        came = expected * rnd.gammavariate(1 / variance, variance)
        forecast.feed(course.at + after_s, came, cold_start_s)
    return forecast
