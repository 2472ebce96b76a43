"""A pool in which work flows like water, so cheap that rules can be tried on days of load.

Ready replicas do a replica-second each per second, and what they can't do lies there. Work beyond what may lie there
comes too late: it is missed, lets the rest pass as late requests do in the queue, and takes the time that is left over.
Replicas start after a cold start and go at once. One that stands by does no work, and does again once it is awake.
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
    clock: float = 0.0
    """End of that time, seconds since the epoch. Unlike `at` it passes where ticks are missing; 0 where nobody asks for
    the time of day."""


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
    wake_s: float = 20.0
    """Seconds in which a standby wakes."""
    standby_price: float = 1.0
    """Cost of a standby, as part of that of a replica that serves."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Replicas that a rule asks for."""

    serving: int
    """Starting ones included."""
    standby: int = 0
    """Replicas that stand by beside them."""


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
    """Replicas that are ordered or told to wake, and are to serve."""
    busy: float
    """Replicas that are busy, as a number."""
    lying: float
    """Replica-seconds that lie there, late ones included."""
    late: float
    """Replica-seconds that came too late."""
    attainment: float | None
    clock: float = 0.0
    """Seconds since the epoch."""
    seconds: float = 0.0
    """Seconds since the last tick."""
    came: float = 0.0
    """Requests that came in this time."""


class FluidScaler(Protocol):
    """A rule for the number of replicas."""

    def wanted(self, view: FluidView) -> Wanted:
        """Return the replicas to have."""
        ...


@dataclass(slots=True)
class Given:
    """Numbers given for each tick; the last one holds on."""

    counts: Sequence[Wanted]
    _place: int = 0

    def wanted(self, view: FluidView) -> Wanted:
        found = self.counts[min(self._place, len(self.counts) - 1)]
        self._place += 1
        return found


@dataclass(frozen=True, slots=True)
class FluidTick:
    """What became of one tick."""

    seconds: float
    replicas: int
    """Starting ones included, standbys not."""
    work: float
    missed: float
    reversal: bool
    standbys: float = 0.0
    """Standbys, each counted with its price."""


@dataclass(frozen=True, slots=True)
class FluidRun:
    """Outcome of a replay."""

    ticks: tuple[FluidTick, ...]

    @property
    def hours(self) -> float:
        """Replica-hours; one of a standby counts with its price."""
        return sum((each.replicas + each.standbys) * each.seconds for each in self.ticks) / 3600

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


def replay(ticks: Sequence[LoadTick], scaler: FluidScaler, first: Wanted, rules: FluidRules) -> FluidRun:
    """Let a rule serve a load, from so many replicas on, which are ready or stand by."""
    pool = FluidPool(rules, first.serving, first.standby)
    return FluidRun(tuple(pool.tick(each, scaler) for each in ticks))


@dataclass(slots=True)
class FluidPool:
    """Pool in the making of a replay."""

    rules: FluidRules
    ready: int
    standing: int = 0
    """Replicas that stand by and were not told to wake."""
    starting: list[float] = field(default_factory=list)
    """Times at which ordered replicas will be loaded, oldest first."""
    waking: list[float] = field(default_factory=list)
    """Times at which woken standbys will be ready, oldest first."""
    serving: int = 0
    """Replicas that were last wanted to serve."""
    lying: float = 0.0
    late: float = 0.0
    work: float = 0.0
    requests: float = 0.0
    seen_s: float = 0.0
    judged: float = 0.0
    met: float = 0.0
    direction: int = 0
    moved_at: float = -math.inf

    def __post_init__(self) -> None:
        self.serving = self.ready

    def tick(self, load: LoadTick, scaler: FluidScaler) -> FluidTick:
        """Serve one tick's work, then let the rule decide."""
        self._arrive(load.at)
        have, standbys = self.ready + self._coming, self._loaded + len(self.starting) - self.ready - self._coming
        busy, missed = self._serve(load)
        self._average(load, missed)
        attainment = max(0.0, self.met / self.judged) if self.judged > 0 and self.seen_s >= _SETTLED_S else None
        view = FluidView(
            load.at, self.work, self.requests, self.ready, self._coming, busy, self.lying + self.late, self.late,
            attainment, load.clock, load.seconds, load.requests,
        )  # fmt: skip
        turned = self._change(load.at, scaler.wanted(view))
        return FluidTick(load.seconds, have, load.work, missed, turned, self.rules.standby_price * standbys)

    @property
    def _loaded(self) -> int:
        """Replicas that serve, wake or stand by."""
        return self.ready + len(self.waking) + self.standing

    @property
    def _coming(self) -> int:
        """Replicas that are not ready yet and are to serve."""
        return max(0, min(len(self.starting) + len(self.waking), self.serving - self.ready))

    def _arrive(self, at: float) -> None:
        awake = sum(each <= at for each in self.waking)
        self.ready, self.waking = self.ready + awake, self.waking[awake:]
        due = sum(each <= at for each in self.starting)
        self.starting = self.starting[due:]
        serve = max(0, min(due, self.serving - self.ready - len(self.waking)))
        self.ready, self.standing = self.ready + serve, self.standing + due - serve

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

    def _change(self, at: float, wanted: Wanted) -> bool:
        """Start, wake, send to stand by or remove replicas; return whether the direction turned."""
        have, self.serving = self.ready + self._coming, wanted.serving
        self._fit(at, wanted.serving + wanted.standby)
        self._share(at)
        if wanted.serving == have:
            return False
        direction = 1 if wanted.serving > have else -1
        turned = self.direction == -direction and at - self.moved_at <= REVERSAL_WITHIN_S
        self.direction, self.moved_at = direction, at
        return turned

    def _fit(self, at: float, total: int) -> None:
        """Order replicas, or remove some: starting ones first, then standbys, then those that serve."""
        surplus = self._loaded + len(self.starting) - total
        self.starting += [at + self.rules.cold_start_s] * max(0, -surplus)
        cancelled = max(0, min(surplus, len(self.starting)))
        self.starting = self.starting[: len(self.starting) - cancelled]
        surplus -= cancelled
        standing = max(0, min(surplus, self.standing))
        waking = max(0, min(surplus - standing, len(self.waking)))
        self.standing, self.waking = self.standing - standing, self.waking[: len(self.waking) - waking]
        self.ready -= max(0, surplus - standing - waking)

    def _share(self, at: float) -> None:
        """Wake standbys where loaded replicas are too few to serve; let those stand by that are too many."""
        few = self.serving - self.ready - len(self.waking)
        woken = max(0, min(few, self.standing))
        self.standing, self.waking = self.standing - woken, self.waking + [at + self.rules.wake_s] * woken
        asleep = max(0, min(-few, len(self.waking)))
        self.waking = self.waking[: len(self.waking) - asleep]
        idle = max(0, -few - asleep)
        self.ready, self.standing = self.ready - idle, self.standing + asleep + idle
