"""Phases of a simulated day: what happens to a pool while it is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DayPhase:
    """A part of the measured time."""

    name: str
    part: float
    """Its part of the measured time."""
    rate: float = 1.0
    """How many times the usual rate comes, in the mean."""
    wave: float = 0.0
    """How far the rate goes up and down once in the phase, as a part of its mean."""
    hot: float = 0.0
    """Work for one home beyond what is usual, in mean loads of a cell."""
    homes: int = 1
    """Homes that are hot, one after the other."""
    away: bool = False
    """Whether the last cell does not answer."""
    replicas: float = 1.0
    """Part of the replicas that is there."""


DAY = (
    DayPhase("wave", 0.25, rate=0.8, wave=0.35),
    DayPhase("steady", 0.1),
    DayPhase("overload", 0.1, rate=1.22),
    DayPhase("after it", 0.05, rate=0.7),
    DayPhase("hot homes", 0.2, rate=0.85, hot=1.0, homes=3),
    DayPhase("cell away", 0.06, rate=0.7, away=True),
    DayPhase("cell back", 0.04, rate=0.7),
    DayPhase("fewer replicas", 0.1, rate=0.7, replicas=0.8),
    DayPhase("more replicas", 0.1, rate=0.9),
)
"""A wave, a steady load, overload, homes that get too much, a cell that is cut off, and replicas that go and come. At a
usual rate that uses 90 % of the slots, the overload is 110 %."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What holds in one second of the measured time."""

    phase: DayPhase
    number: int
    rate: float
    """Times the usual rate."""
    hot_home: int
    """Home that is hot, if one is."""


class Day:
    """Phases in order, by the second."""

    def __init__(self, phases: tuple[DayPhase, ...], seconds: int) -> None:
        self.phases = phases
        ends, end = list[int](), 0.0
        for phase in phases:
            end += phase.part
            ends.append(round(end * seconds))
        self._ends = ends

    def at(self, second: int) -> Moment:
        """Return what holds in a second."""
        number = next((number for number, end in enumerate(self._ends) if second < end), len(self._ends) - 1)
        phase, begin = self.phases[number], self._ends[number - 1] if number else 0
        passed = (second - begin) / max(1, self._ends[number] - begin)
        rate = phase.rate * (1 + phase.wave * math.sin(2 * math.pi * passed))
        return Moment(phase, number, rate, min(phase.homes - 1, int(passed * phase.homes)))

    def seconds(self, number: int) -> int:
        """Return how long a phase is."""
        return self._ends[number] - (self._ends[number - 1] if number else 0)


WHOLE = (DayPhase("whole", 1.0),)
"""One phase in which nothing happens."""
