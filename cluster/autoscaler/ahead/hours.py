"""The next hours of one pool, for people who look: what is expected by source, and the replicas that the plan needs.

Decisions use one cold start of it. The rest is what follows from what is known now.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from operator import attrgetter
from typing import Any

from cluster.autoscaler.ahead.announcements import Announcements
from cluster.autoscaler.ahead.foresight import Foresight
from cluster.control.replica_policy import SlowDecision
from cluster.control.replica_rules import GroupBounds, SlowRules
from cluster.control.settings import ControlMode
from cluster.control.sizing import planned_fill
from cluster.control.snapshot import GroupSnapshot
from cluster.forecast.pool_forecast import Outlook, Pattern

STEP_S = 300.0
LENGTH_S = 6 * 3600.0
EVERY_S = 60.0
"""Time between two looks. Forecasts change once a minute."""


@dataclass(frozen=True, slots=True)
class HourPoint:
    """A moment of the next hours. Work is in replica-seconds per second: replicas that it keeps busy all the time."""

    at: float
    """Seconds of pool time."""
    load: float
    """The present load, changed as the pattern of earlier days or weeks foretells, trusted or not."""
    announced: float
    """Announced work beyond what comes already, as far as it is believed."""
    said: float
    """Announced work, believed or not."""
    scheduled: int
    """Replicas that the schedule asks for."""
    planned: int
    """Replicas that the plan needs then, as far as is known now."""


_POINT = attrgetter(*(each.name for each in fields(HourPoint)))


@dataclass(frozen=True, slots=True)
class HoursAhead:
    """Next hours of one pool."""

    at: float
    """When they were foreseen, seconds of pool time."""
    cold_start_s: float
    """Duration of a start: how far decisions look ahead."""
    points: tuple[HourPoint, ...] = ()
    """From now on; empty without a step model."""
    outlook: Outlook | None = None
    """The forecast; None where there is none yet."""

    def values(self) -> dict[str, Any]:
        """Return what `read_hours` reads."""
        rest = {"at": self.at, "cold_start_s": self.cold_start_s}
        points = [[_short(value) for value in _POINT(point)] for point in self.points]
        return {**rest, "points": points, "outlook": None if self.outlook is None else asdict(self.outlook)}


@dataclass(frozen=True, slots=True)
class Plan:
    """What replicas follow from: a decision, and rules and bounds of the pool."""

    made: SlowDecision
    rules: SlowRules
    bounds: GroupBounds
    affordable: int | None
    """Most replicas that the budget pays for; None without one."""

    def replicas(self, work: float, scheduled: int) -> int:
        """Return the replicas for so much work, at least the scheduled ones, within the bounds."""
        needed = math.ceil(work / planned_fill(work, self.made.state, self.rules) - 1e-9) if work > 0 else 0
        largest = self.bounds.largest if self.affordable is None else min(self.bounds.largest, self.affordable)
        return max(self.bounds.smallest, min(largest, max(needed, scheduled)))


def look_ahead(seen: GroupSnapshot, plan: Plan, foresight: Foresight, announcements: Announcements) -> HoursAhead:
    """Return the next hours.

    Args:
        seen: the group, with what is foreseen.
        plan: the decision about it.
        foresight: its forecast and schedule.
        announcements: what is announced.
    """
    made = plan.made
    hours = HoursAhead(seen.at, seen.cold_start_s, outlook=seen.outlook)
    if seen.model is None or made.work is None:
        return hours
    # On whole steps, so that the points stay where they are from one look to the next.
    first = (math.floor(seen.at / STEP_S) + 1) * STEP_S
    times = [seen.at, *(first + STEP_S * number for number in range(round(LENGTH_S / STEP_S)))]
    changes = foresight.forecast.course([round((time - seen.at) / 60.0) for time in times[1:]])
    pattern = seen.outlook.pattern if seen.outlook is not None else None
    trusted = pattern is not None and pattern.trusted
    least = plan.rules.ahead.least_down
    points = []
    for time, change, announced in zip(times, (1.0, *changes), announcements.course(times), strict=True):
        # Steps are longer or shorter than the model says, and so is what comes.
        believed = announced.soon * made.state.check.factor
        counts = believed if announcements.mode is ControlMode.ACTIVE else 0.0
        due = max((each.replicas for each in foresight.schedule if each.holds(time)), default=0)
        planned = plan.replicas(made.work * (max(least, change) if trusted else 1.0) + counts, due)
        points.append(HourPoint(time, made.work * change, believed, announced.said, due, planned))
    # What is decided for now has rails of its own.
    points[0] = replace(points[0], planned=made.replicas)
    return replace(hours, points=tuple(points))


def read_hours(stored: Mapping[str, Any] | None) -> HoursAhead | None:
    """Read what `HoursAhead.values` returned. Fields that only a later release knows are left out.

    Raises:
        ValueError, KeyError, TypeError: the values are anything else.
    """
    if stored is None:
        return None
    points = tuple(_point(values) for values in stored["points"])
    return HoursAhead(stored["at"], stored["cold_start_s"], points, _outlook(stored["outlook"]))


def _point(values: Sequence[float]) -> HourPoint:
    at, load, announced, said, scheduled, planned = values[: len(fields(HourPoint))]
    return HourPoint(at, load, announced, said, int(scheduled), int(planned))


def _outlook(stored: Mapping[str, Any] | None) -> Outlook | None:
    if stored is None:
        return None
    known = {each.name: stored[each.name] for each in fields(Outlook)}
    pattern = known["pattern"]
    if pattern is not None:
        known["pattern"] = Pattern(**{each.name: pattern[each.name] for each in fields(Pattern)})
    return Outlook(**known)


def _short(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.10g}")
