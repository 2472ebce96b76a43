"""Groups as the replica policy sees them, in the units of its tests: replicas that are kept busy."""

from __future__ import annotations

import dataclasses
import math

from cluster.control import replica_policy as slow
from cluster.control.load_forecast import Need
from cluster.control.replica_policy import SlowDecision
from cluster.control.replica_rules import GroupBounds, SlowRules, SlowState
from cluster.control.snapshot import ClassDemand, GroupSnapshot
from cluster.control.step_model import Shape, StepModel
from penstock.models import RequestClass
from penstock.values.slo import ClassSlo, OperatingPoint

MODEL = StepModel(a=0.013, b=45e-6, g=0.08e-6)
SHAPE = Shape(prompt_tokens=500, output_tokens=200)
POINT = OperatingPoint(interactive=ClassSlo(ttft_p99_s=2.0, itl_p95_s=0.05))
BOUNDS = GroupBounds(1, 100)
TICK_S = 15.0


def seconds_per_request() -> float:
    """Return a request's replica-seconds at the batch that the SLO allows."""
    batch = MODEL.batch_for_itl(0.05, SHAPE.mix)
    return MODEL.gpu_seconds(SHAPE, min(256.0, batch))


def interactive(replicas: float, **more: object) -> ClassDemand:
    """Make arrivals that keep so many replicas busy all the time."""
    return ClassDemand(RequestClass.INTERACTIVE, replicas / seconds_per_request(), SHAPE, **more)  # type: ignore[arg-type]


RULES = SlowRules(fill=0.75)
"""Round numbers."""


def decide(
    point: OperatingPoint, bounds: GroupBounds, seen: GroupSnapshot, state: SlowState, rules: SlowRules = RULES
) -> SlowDecision:
    return slow.decide(point, bounds, seen, state, rules)


def group(ready: int, *demands: ClassDemand, **more: object) -> GroupSnapshot:
    return GroupSnapshot(at=10_000.0, ready=ready, demands=demands, model=MODEL, kv_usage=0.3, **more)  # type: ignore[arg-type]


def long_ago(needed: int = 1, work: float = 1.0) -> SlowState:
    """Make the state of a loop that has needed so many replicas for the last hour."""
    times = [10_000.0 - TICK_S * n for n in range(240, 0, -1)]
    return SlowState(needs=tuple(Need(at, work, needed) for at in times), active_at=10_000.0)


def names(decision: SlowDecision) -> list[str]:
    return [step.name for step in decision.steps]


def reason(decision: SlowDecision, name: str) -> str:
    return next(step.reason for step in decision.steps if step.name == name)


def changing(
    *, prompts: float, batch: float, ticks: int = 4, follow: bool = False, rules: SlowRules = RULES
) -> SlowDecision:
    """Decide on what came for half an hour and then changed for some ticks. `follow`: what is decided is started."""
    state, kept, starting = SlowState(), math.exp(-TICK_S / 60.0), 0
    rate, prompt = interactive(3.0).rate, SHAPE.prompt_tokens
    for tick in range(120 + ticks):
        changed = tick >= 120
        prompt = kept * prompt + (1 - kept) * SHAPE.prompt_tokens * (prompts if changed else 1.0)
        demand = ClassDemand(RequestClass.INTERACTIVE, rate, dataclasses.replace(SHAPE, prompt_tokens=prompt))
        live = batch if changed else 64.0
        seen = dataclasses.replace(group(6, demand, starting=starting), at=tick * TICK_S, live_batch=live)
        decision = decide(POINT, BOUNDS, seen, state, rules)
        state = decision.state
        starting = max(0, decision.replicas - 6) if follow and changed else 0
    return decision
