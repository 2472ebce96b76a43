"""A pool in which work flows like water, so cheap that rules can be tried on days of load.

Ready replicas do a replica-second each per second, and what they can't do lies there. Work beyond what may lie there
comes too late: it is missed, lets the rest pass as late requests do in the queue, and takes the time that is left over.
Replicas start after a cold start and go at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

REVERSAL_WITHIN_S = 1800.0
"""Seconds after a change of the number within which a change in the other direction is a reversal."""
_SETTLED_S = 300.0
"""Seconds at the start without an attainment."""


@dataclass(frozen=True, slots=True)
class LoadTick:
    """Work that came in the time before `at`."""

    at: float
    """End of that time, seconds."""
    seconds: float
    """Length of that time."""
    work: float
    """Replica-seconds that came."""
    requests: float
    """Requests that came."""


@dataclass(frozen=True, slots=True)
class FluidRules:
    """Constants of a fluid pool."""

    cold_start_s: float
    lies_s: float
    """Seconds of all replicas' work that may lie there before requests come too late: their wait, and what full batches
    hold."""
    window_s: float = 60.0
    """Seconds over which rates are averaged."""
    attainment_s: float = 600.0
    """Seconds over which the attainment is averaged."""
    capacity: float = 0.95
    """Part of a replica's time that works."""


@dataclass(frozen=True, slots=True)
class FluidView:
    """A fluid pool at one tick, as a rule sees it."""

    at: float
    work: float
    """Replica-seconds that come per second, averaged."""
    requests: float
    """Requests that come per second, averaged."""
    ready: int
    starting: int
    busy: float
    """Replicas that are busy, as a number."""
    lying: float
    """Replica-seconds that lie there, late ones included."""
    late: float
    """Replica-seconds that came too late."""
    attainment: float | None


class FluidScaler(Protocol):
    """A rule for the number of replicas."""

    def wanted(self, view: FluidView) -> int:
        """Return the number of replicas to have, starting ones included."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """A fixed number."""

    replicas: int

    def wanted(self, view: FluidView) -> int:
        return self.replicas


@dataclass(slots=True)
class Given:
    """Numbers given for each tick."""

    counts: Sequence[int]
    _place: int = 0

    def wanted(self, view: FluidView) -> int:
        found = self.counts[min(self._place, len(self.counts) - 1)]
        self._place += 1
        return found


@dataclass(frozen=True, slots=True)
class FluidTick:
    """What became of one tick."""

    seconds: float
    replicas: int
    """Starting ones included."""
    work: float
    missed: float
    reversal: bool


@dataclass(frozen=True, slots=True)
class FluidRun:
    """Outcome of a replay."""

    ticks: tuple[FluidTick, ...]

    @property
    def hours(self) -> float:
        """Replica-hours."""
        return sum(each.replicas * each.seconds for each in self.ticks) / 3600

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.ticks)

    @property
    def attainment(self) -> float:
        """Part of the work that was in time, 0 to 1; 1 without work."""
        work = sum(each.work for each in self.ticks)
        return 1.0 - sum(each.missed for each in self.ticks) / work if work else 1.0

    @property
    def reversals(self) -> int:
        return sum(each.reversal for each in self.ticks)

    def since(self, ticks: int) -> FluidRun:
        """Return the run without its first ticks."""
        return FluidRun(self.ticks[ticks:])


def replay(ticks: Sequence[LoadTick], scaler: FluidScaler, replicas: int, rules: FluidRules) -> FluidRun:
    """Let a rule serve a load, from so many ready replicas on."""
    pool = FluidPool(rules, replicas)
    return FluidRun(tuple(pool.tick(each, scaler) for each in ticks))


@dataclass(slots=True)
class FluidPool:
    """Pool in the making of a replay."""

    rules: FluidRules
    ready: int
    starting: list[float] = field(default_factory=list)
    """Times at which replicas will be ready, oldest first."""
    lying: float = 0.0
    late: float = 0.0
    work: float = 0.0
    requests: float = 0.0
    seen_s: float = 0.0
    judged: float = 0.0
    met: float = 0.0
    direction: int = 0
    moved_at: float = -math.inf

    def tick(self, load: LoadTick, scaler: FluidScaler) -> FluidTick:
        """Serve one tick's work, then let the rule decide."""
        due = sum(at <= load.at for at in self.starting)
        self.ready, self.starting = self.ready + due, self.starting[due:]
        have = self.ready + len(self.starting)
        busy, missed = self._serve(load)
        self._average(load, missed)
        attainment = max(0.0, self.met / self.judged) if self.judged > 0 and self.seen_s >= _SETTLED_S else None
        view = FluidView(
            load.at, self.work, self.requests, self.ready, len(self.starting), busy, self.lying + self.late, self.late,
            attainment,
        )  # fmt: skip
        return FluidTick(load.seconds, have, load.work, missed, self._change(load.at, scaler.wanted(view)))

    def _serve(self, load: LoadTick) -> tuple[float, float]:
        """Return how many replicas were busy, and the work that came too late."""
        room = self.ready * self.rules.capacity * load.seconds
        there = self.lying + load.work
        done = min(there, room)
        self.lying = min(there - done, self.ready * self.rules.capacity * self.rules.lies_s)
        missed = there - done - self.lying
        late_done = min(self.late + missed, room - done)
        self.late += missed - late_done
        return (done + late_done) / load.seconds, missed

    def _average(self, load: LoadTick, missed: float) -> None:
        """Average as the autoscaler's meter does: plainly until the window is full."""
        self.seen_s += load.seconds
        plain = load.seconds / self.seen_s if self.seen_s <= self.rules.window_s else 0.0
        weight = max(plain, 1.0 - math.exp(-load.seconds / self.rules.window_s))
        self.work += weight * (load.work / load.seconds - self.work)
        self.requests += weight * (load.requests / load.seconds - self.requests)
        kept = math.exp(-load.seconds / self.rules.attainment_s)
        self.judged = kept * self.judged + load.work
        self.met = kept * self.met + load.work - missed

    def _change(self, at: float, wanted: int) -> bool:
        """Start or remove replicas, starting ones first; return whether the direction turned."""
        have = self.ready + len(self.starting)
        if wanted == have:
            return False
        direction = 1 if wanted > have else -1
        turned = self.direction == -direction and at - self.moved_at <= REVERSAL_WITHIN_S
        self.direction, self.moved_at = direction, at
        if wanted > have:
            self.starting += [at + self.rules.cold_start_s] * (wanted - have)
        else:
            cancelled = min(have - wanted, len(self.starting))
            self.starting = self.starting[: len(self.starting) - cancelled]
            self.ready -= have - wanted - cancelled
        return turned
