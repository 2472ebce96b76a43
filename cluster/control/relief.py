"""What a group gives up while it has too few replicas: latency up to the SLO first, then batch work, then requests."""

from __future__ import annotations

from cluster.control.demand import Demand
from penstock.values.steps import Relief, Step


def relief_of(
    demand: Demand, ready: int, to_come: int, wanted: int, most: int, fill: float, within_s: float
) -> Step | None:
    """Say what to give up, in a step whose name is "relief_" and a `Relief`; None for nothing.

    Args:
        demand: of the last minute.
        ready: replicas that serve.
        to_come: those that are asked for and not there yet. Starts that failed are not among them.
        wanted: the number decided.
        most: no decision goes beyond.
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
    elif to_come > 0 and (wanted < most or load - demand.batch_work <= ready + to_come):
        # Who has no limit of its own would rather wait for them, or for those that are ordered next.
        found, why = Relief.PREEMPT_BATCH, f"batch work has to give way; {to_come} are to come, so nobody is refused"
    else:
        found, why = Relief.SHED, "requests that would wait too long are to be refused"
        if to_come > 0:
            why += f"; the {to_come} that are to come are too few, and there can't be more"
    return Step(f"relief_{found.value}", wanted, f"{load:.3g} replicas' work for {ready} ready ones: {why}")


def relief_without_model(
    last: Relief, urgent_waiting: float, waiting: float, crowded_at: float, to_come: int, wanted: int
) -> Step | None:
    """Say what to give up while no step model can be relied on: work can't be counted then, a line can.

    Who is refused follows from how fast the line moves, not from the model, so nobody is who would be in time.

    Args:
        last: what was given up before. That holds while somebody waits: a short line may be what it has brought about.
        urgent_waiting: requests that wait, without batch work.
        waiting: all requests that wait.
        crowded_at: so many may wait.
        to_come: replicas that are asked for and not there yet.
        wanted: the number decided.
    """
    if urgent_waiting > crowded_at or (last is Relief.SHED and urgent_waiting > 0):
        found, why = Relief.SHED, "requests that would wait too long are to be refused"
        if to_come > 0:
            found, why = Relief.PREEMPT_BATCH, f"{to_come} are to come, so nobody is refused"
    elif last is not Relief.NONE and waiting > 0:
        found, why = min(last, Relief.PREEMPT_BATCH, key=list(Relief).index), "as before"
    else:
        return None
    return Step(f"relief_{found.value}", wanted, f"{waiting:.0f} wait and no step model tells for how long: {why}")
