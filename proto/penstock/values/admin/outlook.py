"""What a pool expects of the next hours."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from penstock.v1 import outlook_pb2
from penstock.values.admin.announced import AnnouncedLoad
from penstock.wire import duration_from_wire, moment_from_wire


@dataclass(frozen=True, slots=True)
class OutlookPoint:
    """A moment of the next hours. Work is in replicas that it keeps busy all the time."""

    at: datetime.datetime
    """UTC."""
    load: float
    """The present load, changed as earlier days or weeks foretell, whether that decides or not."""
    announced: float
    """Announced work beyond what comes already, as far as it is believed."""
    said: float
    """Announced work, believed or not."""
    scheduled: int
    """Replicas that the schedule asks for."""
    planned: int
    """Replicas that the plan needs then, as far as is known now. The first is the last decision."""


@dataclass(frozen=True, slots=True)
class AnnouncedPart:
    """Announced load as a pool counts it."""

    load: AnnouncedLoad
    """The announcement with the pool's part of its rate. Its pool is the alias, where it was announced to one."""
    believed: float
    """How right its tenant has been: part of the work it announced that came, of late, 0 to 1."""
    judged_minutes: float
    """Announced minutes that this rests on."""
    weight: float
    """Part of the rate that counts in the plan, 0 to 1."""


@dataclass(frozen=True, slots=True)
class ScheduledReplicas:
    """Time at which a pool has a least number of replicas."""

    start: str
    """Time of day as HH:MM, as the end."""
    end: str
    zone: str
    days: tuple[str, ...]
    """Days on which it begins, "mon" to "sun"; empty where dates are named."""
    dates: tuple[str, ...]
    """Dates on which it begins, as YYYY-MM-DD."""
    replicas: int
    now: bool
    """Whether it is that time."""


@dataclass(frozen=True, slots=True)
class ForecastExpert:
    """Simple forecast that is a part of the whole."""

    name: str
    weight: float
    load: float | None
    """Load that it foresees; None where it knows nothing."""


@dataclass(frozen=True, slots=True)
class LoadForecast:
    """Forecast of a pool's load."""

    ahead: float
    """Seconds."""
    load: float
    """Load then, by all experts together."""
    skill: float
    """Part by which its error was below that of the present load."""
    experts: tuple[ForecastExpert, ...]
    """The heaviest first."""
    pattern: str
    """Expert that knows the pattern of earlier days or weeks best; empty where they tell nothing."""
    pattern_change: float
    """Factor on the present load that the pattern foretells."""
    pattern_skill: float
    pattern_trusted: bool
    """Whether decisions use the pattern."""


@dataclass(frozen=True, slots=True)
class PoolOutlook:
    """What a pool expects of the next hours."""

    pool: str
    at: datetime.datetime | None
    """When the autoscaler's leader looked ahead, UTC; None where none has yet."""
    cold_start: float
    """Seconds: decisions look so far ahead."""
    points: tuple[OutlookPoint, ...]
    """Five minutes apart, for six hours; empty while the autoscaler can't tell how long work takes."""
    announced: tuple[AnnouncedPart, ...]
    schedule: tuple[ScheduledReplicas, ...]
    forecast: LoadForecast | None
    announced_decides: bool
    """Whether announced load decides."""
    forecast_decides: bool
    """Whether the forecast decides where it is trusted."""

    @classmethod
    def from_proto(cls, found: outlook_pb2.PoolOutlook) -> PoolOutlook:
        return cls(
            pool=found.pool,
            at=moment_from_wire(found.at_ms) if found.at_ms else None,
            cold_start=duration_from_wire(found.cold_start),
            points=tuple(
                OutlookPoint(
                    moment_from_wire(each.at_ms), each.load, each.announced, each.said, each.scheduled, each.planned
                )
                for each in found.points
            ),
            announced=tuple(
                AnnouncedPart(AnnouncedLoad.from_proto(each.load), each.believed, each.judged_minutes, each.weight)
                for each in found.announced
            ),
            schedule=tuple(
                ScheduledReplicas(
                    *(each.start, each.end, each.zone, tuple(each.days), tuple(each.dates), each.replicas, each.now)
                )
                for each in found.schedule
            ),
            forecast=_forecast(found.forecast) if found.HasField("forecast") else None,
            announced_decides=found.announced_decides,
            forecast_decides=found.forecast_decides,
        )


def _forecast(found: outlook_pb2.LoadForecast) -> LoadForecast:
    return LoadForecast(
        ahead=duration_from_wire(found.ahead),
        load=found.load,
        skill=found.skill,
        experts=tuple(
            ForecastExpert(each.name, each.weight, each.load if each.HasField("load") else None)
            for each in found.experts
        ),
        pattern=found.pattern,
        pattern_change=found.pattern_change,
        pattern_skill=found.pattern_skill,
        pattern_trusted=found.pattern_trusted,
    )
