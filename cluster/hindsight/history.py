"""A load as the autoscaler's recorded decisions tell it."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.control.held_number import IN_BATCHES
from cluster.control.replica_seconds import SLO_WAIT_PART
from cluster.hindsight.fluid import FluidRules, LoadTick
from cluster.standby.rule import StandbyLimits
from penstock.models import RequestClass
from penstock.values.slo import OperatingPoint
from penstock.values.steps import Step

MOST_GAP_S = 120.0
"""Longest time between two decisions whose work is known: what came in a longer one was averaged away."""


class DemandLike(Protocol):
    """What is used of one class' demand in a decision."""

    @property
    def request_class(self) -> RequestClass: ...
    @property
    def rate(self) -> float: ...
    @property
    def deadline(self) -> float | None: ...


class DecisionLike(Protocol):
    """What is used of a decision."""

    @property
    def at_ms(self) -> int: ...
    @property
    def replicas_before(self) -> int: ...
    @property
    def ready(self) -> int: ...
    @property
    def draining(self) -> int: ...
    @property
    def standing_by(self) -> int: ...
    @property
    def failed_starts(self) -> int: ...
    @property
    def running(self) -> float: ...
    @property
    def waiting(self) -> float: ...
    @property
    def cold_start(self) -> float: ...
    @property
    def attainment(self) -> float | None: ...
    @property
    def work(self) -> float | None: ...
    @property
    def gpus_per_replica(self) -> int: ...
    @property
    def demands(self) -> Sequence[DemandLike]: ...
    @property
    def steps(self) -> Sequence[Step]: ...


@dataclass(frozen=True, slots=True)
class Ran:
    """What ran during a tick."""

    replicas: int
    """Those that start or drain included."""
    attainment: float | None
    """As measured, of ten minutes; None with too few requests."""
    standing_by: int = 0
    """Replicas that stood by."""


@dataclass(frozen=True, slots=True)
class History:
    """A recorded load, and what ran for it."""

    ticks: tuple[LoadTick, ...]
    ran: tuple[Ran, ...]
    """One for each tick."""
    cold_start_s: float
    lives_s: float
    """Seconds that a request runs."""
    request_class: RequestClass
    """Class of most requests that are promised a first token in time."""
    gpus_per_replica: int
    left_out_s: float
    """Time between decisions whose work is not known."""
    beside: tuple[str, ...] = ()
    """What else happened, which no replay follows; in words."""

    @property
    def seconds(self) -> float:
        """Time that is known."""
        return sum(each.seconds for each in self.ticks)

    def fluid(self, point: OperatingPoint, window_s: float, standby: StandbyLimits | None = None) -> FluidRules:
        """Return the constants of a fluid pool for this load."""
        standby = standby or StandbyLimits()
        wait_s = SLO_WAIT_PART * (point.of(self.request_class).ttft_p99_s or 0.0)
        return FluidRules(
            self.cold_start_s,
            wait_s + IN_BATCHES * self.lives_s,
            window_s,
            wake_s=standby.wake_s,
            standby_price=standby.price,
        )

    @property
    def measured(self) -> float | None:
        """Attainment as it was measured; None where it never was."""
        known = [(ran.attainment, tick.requests) for ran, tick in zip(self.ran, self.ticks, strict=True)]
        judged = [(value, requests) for value, requests in known if value is not None and requests > 0]
        total = sum(requests for _, requests in judged)
        return sum(value * requests for value, requests in judged) / total if total else None


def history_of(decisions: Sequence[DecisionLike], point: OperatingPoint, window_s: float) -> History:
    """Read a load from decisions.

    Args:
        decisions: oldest first.
        point: the operating point, which says what is promised.
        window_s: window of the averages that decisions tell.
    """
    ticks: list[LoadTick] = []
    ran: list[Ran] = []
    lives: list[float] = []
    left_out_s = 0.0
    for before, now in itertools.pairwise(decisions):
        seconds = (now.at_ms - before.at_ms) / 1000
        if before.work is None or now.work is None or not 0 < seconds <= MOST_GAP_S:
            left_out_s += max(0.0, seconds)
            continue
        # Averages forget at a known pace, so what was added to them is what came.
        kept = math.exp(-seconds / window_s)
        work = max(0.0, now.work - kept * before.work) / (1.0 - kept) * seconds
        rate = _rate(now)
        requests = max(0.0, rate - kept * _rate(before)) / (1.0 - kept) * seconds
        at = ticks[-1].at + seconds if ticks else seconds
        ticks.append(LoadTick(at, seconds, work, requests, now.at_ms / 1000))
        replicas = max(before.replicas_before, before.ready + before.draining)
        ran.append(Ran(replicas, now.attainment, before.standing_by))
        if rate > 0 and now.running > 0 and now.waiting <= 1:
            # Little's law.
            lives.append(now.running / rate)
    newest = decisions[-1] if decisions else None
    return History(
        tuple(ticks),
        tuple(ran),
        newest.cold_start if newest is not None else 0.0,
        statistics.median(lives) if lives else 0.0,
        _class_of(decisions, point),
        newest.gpus_per_replica if newest is not None else 1,
        left_out_s,
        _beside(decisions),
    )


def _beside(decisions: Sequence[DecisionLike]) -> tuple[str, ...]:
    found = []
    if any(each.deadline is not None for made in decisions for each in made.demands):
        found.append("jobs with a deadline: their work waits for free room, and is not among the load")
    if any(made.failed_starts for made in decisions):
        found.append("starts that failed: here each one succeeds")
    if any(step.name == "announced" for made in decisions for step in made.steps):
        found.append("announced load: what tenants said is not on record")
    return tuple(found)


def _rate(made: DecisionLike) -> float:
    return sum(each.rate for each in made.demands if each.deadline is None)


def _class_of(decisions: Sequence[DecisionLike], point: OperatingPoint) -> RequestClass:
    rates = dict.fromkeys(RequestClass, 0.0)
    for each in (demand for made in decisions for demand in made.demands if demand.deadline is None):
        rates[each.request_class] += each.rate
    promised = [each for each in RequestClass if point.of(each).ttft_p99_s is not None]
    return max(promised or list(RequestClass), key=lambda each: rates[each])
