"""Simulation of a recorded load with production's autoscaler: the number of replicas that it would hold on average."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cluster.control.replica_rules import GroupBounds
from loadtest.plan.option import Promise
from loadtest.plan.search import Candidate
from loadtest.plan.traffic import Load
from loadtest.plan.trial import attains, production, setup_of, times_of
from loadtest.simulate.autoscalers.penstock import PenstockSlow, point_of
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.setup import Slo
from penstock.models import RequestClass

MOST_REQUESTS = 10_000
"""Requests that are simulated. More would take minutes."""
MINUTE_S = 60.0
_SEED = 1
SLACK = 0.05
"""Part of a replica that a minute may lack. Batches take that much more."""
HOLD_S = 300.0
"""Time for which the autoscaler keeps replicas that it may need again, seconds."""
FAST_EVERY = 5
"""Seconds between decisions of the batch policy. Over an hour of many replicas, decisions every second would take
longer than all the rest."""
ROOM = 3
"""Bound on the replicas, as a multiple of the fixed number that the load needs."""


@dataclass(frozen=True, slots=True)
class Elastic:
    """Result of such a simulation."""

    mean: float
    """Mean number of replicas, those included that start or drain."""
    most: int
    attainment: float
    requests: int
    """Those that attainment is counted over."""


def elastic(candidate: Candidate, load: Load, promise: Promise, *, cold_start_s: float) -> Elastic:
    """Simulate both production policies on a trace, with an engine as slow as its error makes likely.

    Args:
        candidate: engine, limits, and the number of replicas to begin with.
        load: a recorded one.
        promise: the SLO that the policies hold, and that attainment is counted against.
        cold_start_s: seconds from the order of a replica until it serves.
    """
    engine = candidate.engine.at(promise.confidence)
    # The batches of a replica are alike, so one of each stands for all, with its part of the load.
    trace = load.slice(1.0 / engine.lanes, MOST_REQUESTS, _SEED)
    most = ROOM * candidate.replicas
    setup = replace(
        setup_of(engine, candidate.operation, load, promise, candidate.replicas, seed=_SEED),
        min_replicas=1,
        max_replicas=most,
        cold_start_s=cold_start_s,
    )
    slow = PenstockSlow(
        point_of(dict.fromkeys(RequestClass, Slo(promise.ttft_p99_s, promise.policy_itl_s)), promise.attainment),
        GroupBounds(1, most),
        engine.steps.for_shape(load.shape),
        candidate.operation.batch,
        expected_output=float(setup.expected_output_tokens),
    )
    fast = production(engine, load, promise, FAST_EVERY)
    times = times_of(engine, candidate.operation, load, candidate.replicas)
    run = Simulation(trace, setup, fast=fast, slow=slow, times=times).run()
    met = sum(attains(each, engine, promise) for each in run.outcomes) / len(run.outcomes)
    hours = run.fleet.hours(run.seconds)
    return Elastic(3600 * hours / run.seconds, max(each.ready for each in run.samples), met, len(run.outcomes))


def followed(candidate: Candidate, load: Load, cold_start_s: float) -> Elastic:
    """Return the replicas that follow a recorded load minute by minute, without a simulation. They are there a cold
    start before a minute needs them, and stay for a while. The fixed number is enough for the busiest minutes, because
    trials meet them; in each minute they are as many of those as its work is of the busiest one's.
    """
    steps, operation = candidate.engine.steps.for_shape(load.shape), candidate.operation
    each_output_s = operation.itl_s / operation.batch
    minutes = [0.0] * (int(load.trace[-1].arrival_s / MINUTE_S) + 1)
    for request in load.trace:
        work = steps.b * request.prompt_tokens + each_output_s * request.output_tokens
        minutes[int(request.arrival_s / MINUTE_S)] += work
    most = max(minutes)
    need = [max(1, math.ceil(candidate.replicas * each / most - SLACK)) for each in minutes]
    before, after = math.ceil(HOLD_S / MINUTE_S), math.ceil(cold_start_s / MINUTE_S) + 1
    held = [max(need[max(0, at - before) : at + after]) for at in range(len(need))]
    requests = round(load.factor * len(load.trace))
    return Elastic(sum(held) / len(held), max(held), math.nan, requests)
