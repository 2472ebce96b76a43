"""What a group gives up while it has too few replicas: latency up to the SLO first, then batch work, then requests."""

from __future__ import annotations

from cluster.control.decision import Relief, Step
from cluster.control.demand import Demand


def relief_of(demand: Demand, ready: int, to_come: int, wanted: int, fill: float, within_s: float) -> Step | None:
    """Say what to give up, in a step whose name is "relief_" and a `Relief`; None for nothing.

    Args:
        demand: of the last minute.
        ready: replicas that serve.
        to_come: those that are asked for and not there yet. Starts that failed are not among them.
        wanted: the number decided.
        fill: the part of a replica's time that is planned for.
        within_s: what has piled up is to be worked off in so long.
    """
    load = demand.work + demand.backlog / within_s
    urgent = load + demand.deadline_work
    if urgent <= ready * fill or (not ready and load == 0):
        return None
    if urgent <= ready:
        found, why = Relief.LATENCY, "batches may grow to the edge of the SLO"
    elif load - demand.batch_work <= ready:
        found, why = Relief.PREEMPT_BATCH, "batch work has to give way"
    elif to_come > 0:
        # Who has no limit of its own would rather wait for them.
        found, why = Relief.PREEMPT_BATCH, f"batch work has to give way; {to_come} are to come, so nobody is refused"
    else:
        found, why = Relief.SHED, "requests that would wait too long are to be refused"
    return Step(f"relief_{found.value}", wanted, f"{load:.3g} replicas' work for {ready} ready ones: {why}")
