"""The replica policy on a fluid pool."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.control.replica_policy import decide
from cluster.control.replica_rules import GroupBounds, SlowRules, SlowState
from cluster.control.snapshot import ClassDemand, GroupSnapshot
from cluster.control.step_model import Shape, StepModel
from cluster.hindsight.fluid import FluidView
from penstock.models import RequestClass
from penstock.values.slo import OperatingPoint

_SHAPE = Shape(prompt_tokens=0.0, output_tokens=100.0)
"""Shape of the requests that stand for a load. Only their work and their time count."""


@dataclass(slots=True)
class PolicyScaler:
    """The policy, which sees requests of one kind that stand for the load."""

    point: OperatingPoint
    bounds: GroupBounds
    rules: SlowRules
    cold_start_s: float
    lives_s: float
    """Seconds that a request runs in a full batch."""
    request_class: RequestClass = RequestClass.INTERACTIVE
    gpus_per_replica: int = 1
    state: SlowState = field(default_factory=SlowState)

    def wanted(self, view: FluidView) -> int:
        self.state = (
            made := decide(self.point, self.bounds, self._seen(view), self.state, self.rules, explain=False)
        ).state
        return made.replicas

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
        demand = ClassDemand(self.request_class, view.requests, _SHAPE, round(waiting), oldest_s if waiting else 0.0)
        return GroupSnapshot(
            at=view.at,
            ready=view.ready,
            starting=view.starting,
            demands=(demand,),
            model=model,
            live_batch=batch,
            max_sequences=max(1, round(batch)),
            running=view.busy * batch,
            waiting=round(waiting),
            cold_start_s=self.cold_start_s,
            attainment=view.attainment,
            gpus_per_replica=self.gpus_per_replica,
        )
