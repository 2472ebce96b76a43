"""Settings of a pool's schedule."""

from __future__ import annotations

import re
from datetime import date, time
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from cluster.forecast.schedule import ScheduledTime, zone_of
from cluster.settings.section import Section

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TIME, _DATE = "([01][0-9]|2[0-3]):[0-5][0-9]", "[0-9]{4}-[0-9]{2}-[0-9]{2}"


def _time_of_day(given: object, *, latest: str = "23:59") -> str:
    if isinstance(given, str) and re.fullmatch(_TIME, given):
        return given
    raise ValueError(f"must be a time of day as HH:MM, from 00:00 to {latest}")


def _end_of_time(given: object) -> str:
    return "00:00" if given == "24:00" else _time_of_day(given, latest="24:00")


def _known_date(given: object) -> str:
    try:
        if isinstance(given, str) and re.fullmatch(_DATE, given) and date.fromisoformat(given):
            return given
    except ValueError:
        pass
    raise ValueError("must be a date of the calendar as YYYY-MM-DD")


# The patterns are for those who read the schema: what they refuse has a better message above.
TimeOfDay = Annotated[str, Field(pattern=f"^{_TIME}$"), BeforeValidator(_time_of_day)]
EndOfTime = Annotated[str, Field(pattern=f"^({_TIME}|24:00)$"), BeforeValidator(_end_of_time)]
Date = Annotated[str, Field(pattern=f"^{_DATE}$"), BeforeValidator(_known_date)]


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
    end: EndOfTime
    """End, as HH:MM up to 24:00. One that is earlier than the beginning is on the next day; an equal one is a day
    later."""
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
