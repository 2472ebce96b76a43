"""Settings of a pool's schedule."""

from __future__ import annotations

from datetime import date, time
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from cluster.forecast.schedule import ScheduledTime, zone_of
from cluster.settings.section import Section

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
TimeOfDay = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]


def _known_date(text: str) -> str:
    date.fromisoformat(text)
    return text


Date = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$"), AfterValidator(_known_date)]


def _known_zone(name: str) -> str:
    try:
        zone_of(name)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"must be a time zone that is known here, such as Europe/Berlin, got {name!r}") from error
    return name


class ScheduleSettings(Section):
    """Replicas that a pool has at a time of day at least, ready at its beginning. Where several times hold, the largest
    number counts. Budget and max_replicas bound it.
    """

    start: TimeOfDay
    """Beginning, as HH:MM."""
    end: TimeOfDay
    """End, as HH:MM. One that is earlier than the beginning is on the next day; an equal one is a day later."""
    min_replicas: int = Field(ge=1, le=1024)
    """Fewest replicas in that time."""
    days: tuple[Day, ...] = Field(default=DAYS, min_length=1)
    """Days on which it begins: "mon", "tue", "wed", "thu", "fri", "sat", "sun"."""
    dates: tuple[Date, ...] = Field(default=(), max_length=366)
    """Dates on which it begins, as YYYY-MM-DD, in place of `days`: a launch, or a job that was announced."""
    time_zone: Annotated[str, AfterValidator(_known_zone)] = "UTC"
    """Time zone of both times, as "Europe/Berlin"; changes of its clock count."""

    @property
    def value(self) -> ScheduledTime:
        """The same for the autoscaler."""
        days = frozenset(map(DAYS.index, self.days))
        start, end = time.fromisoformat(self.start), time.fromisoformat(self.end)
        return ScheduledTime(
            start, end, days, self.time_zone, self.min_replicas, frozenset(map(date.fromisoformat, self.dates))
        )
