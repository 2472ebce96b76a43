"""Schedule of a pool: replicas that operators want at given times of given days."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
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
    """Name of a time zone, whose clock changes count."""
    replicas: int
    dates: frozenset[date] = frozenset()
    """Dates on which it starts, in place of the days; empty for every week."""

    def holds(self, at: float) -> bool:
        """Return whether it is that time.

        Args:
            at: seconds since the epoch.
        """
        local = datetime.fromtimestamp(at, zone_of(self.zone))
        now, today = local.time(), local.date()
        if self.start < self.end:
            return self._starts_on(today) and self.start <= now < self.end
        yesterday = today - timedelta(days=1)
        return (self._starts_on(today) and now >= self.start) or (self._starts_on(yesterday) and now < self.end)

    def _starts_on(self, day: date) -> bool:
        return day in self.dates if self.dates else day.weekday() in self.days

    def __str__(self) -> str:
        return f"from {self.start:%H:%M} to {self.end:%H:%M} {self.zone}"


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Replicas that are scheduled for now, or for one cold start from now."""

    replicas: int
    reason: str


def zone_of(name: str) -> tzinfo:
    """Return a time zone.

    Raises:
        ZoneInfoNotFoundError, ValueError: there is none of that name here.
    """
    # A machine without a database of time zones knows this one too.
    return UTC if name == "UTC" else ZoneInfo(name)


def scheduled(schedule: Sequence[ScheduledTime], at: float, cold_start_s: float) -> Scheduled | None:
    """Return the most replicas that are scheduled from now until a replica that is ordered now is ready; None without
    any.

    Args:
        schedule: all scheduled times.
        at: now, seconds since the epoch.
        cold_start_s: duration of a start. Replicas are ordered so much sooner.
    """
    steps = [min(cold_start_s, _STEP_S * number) for number in range(math.ceil(cold_start_s / _STEP_S) + 1)]
    due = [each for each in schedule if any(each.holds(at + step) for step in steps)]
    if not due:
        return None
    most = max(due, key=lambda each: each.replicas)
    return Scheduled(most.replicas, f"scheduled {most}")
