"""The replica policy on a fluid pool, with what a pool has on: its schedule, its forecast and its standbys."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cluster.control.replica_policy import SlowDecision, decide
from cluster.control.replica_rules import GroupBounds, SlowRules, SlowState
from cluster.control.snapshot import ClassDemand, GroupSnapshot
from cluster.control.step_model import Shape, StepModel
from cluster.forecast.schedule import ScheduledTime, scheduled
from cluster.hindsight.fluid import FluidView, Wanted
from cluster.hindsight.foreseen import ForeseenLoad
from cluster.standby.pool import most_with_standbys
from cluster.standby.rule import StandbyInput, StandbyLimits, StandbyState, decide_standby
from penstock.models import RequestClass
from penstock.values.slo import OperatingPoint

_NOBODY, _NOTHING = 0.01, 1e-6
"""Requests of a tick, and busy replicas, below which there are none: a load that is read from averages is not exact."""
_SHAPE = Shape(prompt_tokens=0.0, output_tokens=100.0)
"""Shape of the requests that stand for a load. Only their work and their time count."""


@dataclass(frozen=True, slots=True)
class ReplayedPool:
    """A pool as a replay follows it."""

    bounds: GroupBounds
    rules: SlowRules
    schedule: tuple[ScheduledTime, ...] = ()
    standby: StandbyLimits = field(default_factory=StandbyLimits)
    foreseen: ForeseenLoad | None = None
    """Forecast before the load; None where none counts."""
    left_out: tuple[str, ...] = ()
    """What the pool has on and no replay follows, in words."""


@dataclass(slots=True)
class PolicyScaler:
    """The policy, which sees requests of one kind that stand for the load."""

    point: OperatingPoint
    pool: ReplayedPool
    cold_start_s: float
    lives_s: float
    """Seconds that a request runs in a full batch."""
    request_class: RequestClass = RequestClass.INTERACTIVE
    gpus_per_replica: int = 1
    state: SlowState = field(default_factory=SlowState)
    standby: StandbyState = field(default_factory=StandbyState)
    _foreseen: ForeseenLoad | None = None
    _clock: float = 0.0
    """Time of the last tick, seconds since the epoch."""
    _arrived_at: float | None = None

    def __post_init__(self) -> None:
        # Each replay goes on from what was known before.
        self._foreseen = None if self.pool.foreseen is None else self.pool.foreseen.again()

    def wanted(self, view: FluidView) -> Wanted:
        seen = self._ahead(self._seen(view), view)
        made = decide(self.point, self.pool.bounds, seen, self.state, self.pool.rules, explain=False)
        self.state, self._clock = made.state, view.clock
        return Wanted(made.replicas, self._standbys(made, seen))

    def _ahead(self, seen: GroupSnapshot, view: FluidView) -> GroupSnapshot:
        """Return the group with what is scheduled and foreseen."""
        due = scheduled(self.pool.schedule, view.clock, self.cold_start_s, seen.tick_s)
        if self._foreseen is None:
            return replace(seen, scheduled=due)
        outlook = self._foreseen.look(self._clock, self.state.needs, self.cold_start_s)
        return replace(seen, scheduled=due, outlook=outlook)

    def _standbys(self, made: SlowDecision, seen: GroupSnapshot) -> int:
        limits = self.pool.standby
        if not limits.most:
            return 0
        affordable = self.point.affordable(self.gpus_per_replica)
        most = most_with_standbys(made.replicas, self.pool.bounds.largest, affordable, limits.price)
        facts = StandbyInput(seen.at, made.replicas, self.cold_start_s, most - made.replicas)
        self.standby = decide_standby(limits, facts, self.standby).state
        return self.standby.standby

    def _seen(self, view: FluidView) -> GroupSnapshot:
        seconds = view.work / view.requests if view.requests > 0 and view.work > 0 else 1.0
        batch = max(1.0, self.lives_s / seconds)
        # A step model by which such a request takes just these seconds of a replica.
        model = StepModel(seconds * batch / _SHAPE.output_tokens, 0.0, 0.0)
        # What full batches hold does not wait.
        waiting = max(0.0, view.lying - view.ready * self.lives_s / 2) / seconds
        ready = max(1, view.ready)
        slo_s = self.point.of(self.request_class).ttft_p99_s or 0.0
        oldest_s = (slo_s if view.late > 0 else 0.0) + waiting * seconds / ready
        if view.came > _NOBODY:
            self._arrived_at = view.at
        demand = ClassDemand(self.request_class, view.requests, _SHAPE, round(waiting), oldest_s if waiting else 0.0)
        return GroupSnapshot(
            at=view.at,
            ready=view.ready,
            starting=view.starting,
            demands=(demand,),
            model=model,
            live_batch=batch,
            max_sequences=max(1, round(batch)),
            running=view.busy * batch if view.busy > _NOTHING else 0.0,
            waiting=round(waiting),
            cold_start_s=self.cold_start_s,
            tick_s=view.seconds,
            arrived_at=self._arrived_at,
            attainment=view.attainment,
            gpus_per_replica=self.gpus_per_replica,
        )
