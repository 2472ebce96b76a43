"""Schedule of a pool: replicas that operators want at given times of given days."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

_STEP_S = 60.0
"""Times of day are whole minutes, so no scheduled time can lie between two steps unseen."""


@dataclass(frozen=True, slots=True)
class ScheduledTime:
    """Time of day with a number of replicas. It may last beyond midnight; where both ends are equal it lasts a day."""

    start: time
    end: time
    days: frozenset[int]
    """Days on which it starts; Monday is 0."""
    zone: str
    """Name of a time zone, whose clock changes count: an end in an hour that comes twice is the later one."""
    replicas: int
    dates: frozenset[date] = frozenset()
    """Dates on which it starts, in place of the days; empty for every week."""

    def holds(self, at: float) -> bool:
        """Return whether it is that time.

        Args:
            at: seconds since the epoch.
        """
        today = datetime.fromtimestamp(at, zone_of(self.zone)).date()
        spans = (
            _span(day, self.start, self.end, self.zone)
            for day in (today, today - timedelta(days=1))
            if self._starts_on(day)
        )
        return any(begins <= at < ends for begins, ends in spans)

    def _starts_on(self, day: date) -> bool:
        return day in self.dates if self.dates else day.weekday() in self.days

    def __str__(self) -> str:
        return f"from {self.start:%H:%M} to {self.end:%H:%M} {self.zone}"


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Replicas that are scheduled for now, or for the time at which a replica would be ready."""

    replicas: int
    reason: str


def zone_of(name: str) -> tzinfo:
    """Return a time zone.

    Raises:
        ZoneInfoNotFoundError, ValueError: there is none of that name here.
    """
    # A machine without a database of time zones knows this one too.
    return UTC if name == "UTC" else ZoneInfo(name)


@lru_cache(maxsize=1024)
def _span(day: date, start: time, end: time, zone: str) -> tuple[float, float]:
    """Return beginning and end of a time that starts on a day, in seconds since the epoch. Of a time of day that comes
    twice when the clock is set back, or not at all, it takes the reading that lasts longer: no replica is to go in the
    middle, or to be missing.
    """
    end_day = day if start < end else day + timedelta(days=1)
    return min(_readings(day, start, zone)), max(_readings(end_day, end, zone))


def _readings(day: date, at: time, zone: str) -> tuple[float, float]:
    local = datetime.combine(day, at, zone_of(zone))
    return local.timestamp(), local.replace(fold=1).timestamp()


def scheduled(
    schedule: Sequence[ScheduledTime], at: float, cold_start_s: float, tick_s: float = 0.0
) -> Scheduled | None:
    """Return the most replicas that are scheduled from now until a replica that is ordered at the next look is ready;
    None without any.

    Args:
        schedule: all scheduled times.
        at: now, seconds since the epoch.
        cold_start_s: duration of a start. Replicas are ordered so much sooner.
        tick_s: seconds until the next look. What is left to it is ordered so much later.
    """
    ahead_s = cold_start_s + tick_s
    steps = [min(ahead_s, _STEP_S * number) for number in range(math.ceil(ahead_s / _STEP_S) + 1)]
    due = [each for each in schedule if any(each.holds(at + step) for step in steps)]
    if not due:
        return None
    most = max(due, key=lambda each: each.replicas)
    return Scheduled(most.replicas, f"scheduled {most}")
