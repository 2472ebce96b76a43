"""Simulation of a recorded load with production's autoscaler: the number of replicas that it would hold on average."""

from __future__ import annotations

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
"""Requests of the trace's beginning that are simulated. More would take minutes."""
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


def elastic(candidate: Candidate, load: Load, promise: Promise, *, cold_start_s: float, seed: int = 1) -> Elastic:
    """Simulate both production policies on a trace, with an engine as slow as its error makes likely.

    Args:
        candidate: engine, limits, and the number of replicas to begin with.
        load: a recorded one.
        promise: the SLO that the policies hold, and that attainment is counted against.
        cold_start_s: seconds from the order of a replica until it serves.
        seed: of the random draws.
    """
    engine, trace = candidate.engine.careful, load.trace[:MOST_REQUESTS]
    most = ROOM * candidate.replicas
    setup = replace(
        setup_of(engine, candidate.operation, load, promise, candidate.replicas, seed=seed),
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
    fast, times = production(engine, load, promise, FAST_EVERY), times_of(engine, load)
    run = Simulation(trace, setup, fast=fast, slow=slow, times=times).run()
    met = sum(attains(each, engine, promise) for each in run.outcomes) / len(run.outcomes)
    hours = run.fleet.hours(run.seconds)
    return Elastic(3600 * hours / run.seconds, max(each.ready for each in run.samples), met, len(run.outcomes))
