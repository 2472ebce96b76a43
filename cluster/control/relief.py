"""Relief of a group with too few replicas: it gives up latency up to the SLO first, then batch work, then requests."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.control.replica_seconds import Demand
from penstock.values.steps import Relief, Step


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """A group's replicas beside the number that was decided."""

    ready: int
    """Replicas that serve."""
    to_come: int
    """Replicas that are wanted or starting, and not there yet. Starts that failed are not among them."""
    wanted: int
    """The number decided."""
    most: int
    """The largest number that any decision may have."""
    held: bool = False
    """Whether the number is held through a burst, and more could be ordered."""


def relief_of(demand: Demand, counts: ReplicaCounts, fill: float, within_s: float) -> Step | None:
    """Return what to give up, as a step whose name is "relief_" and a `Relief`; None for nothing.

    Args:
        demand: of the last minute.
        counts: the group's replicas.
        fill: the part of a replica's time that is planned for.
        within_s: seconds in which the backlog is to be worked off.
    """
    ready, to_come = counts.ready, counts.to_come
    load = demand.work + demand.backlog / within_s
    urgent = load + demand.deadline_work
    if urgent <= ready * fill or (not ready and load == 0):
        return None
    if urgent <= ready:
        found, why = Relief.LATENCY, "batches may grow to the edge of the SLO"
    elif load - demand.batch_work <= ready:
        found, why = Relief.PREEMPT_BATCH, "batch work has to give way"
    elif to_come > 0 and (counts.wanted < counts.most or load - demand.batch_work <= ready + to_come):
        # A request without a limit of its own can wait for these replicas, or for those that are ordered next.
        found, why = Relief.PREEMPT_BATCH, f"batch work has to give way; {to_come} are to come, so nobody is refused"
    elif counts.held and counts.wanted < counts.most:
        # Whoever holds a number has chosen to let requests wait. A burst that lasts too long for that gets more.
        found, why = Relief.PREEMPT_BATCH, "batch work has to give way; more can be ordered, so nobody is refused"
    else:
        found, why = Relief.SHED, "requests that would wait too long are to be refused"
        if to_come > 0:
            why += f"; the {to_come} that are to come are too few, and there can't be more"
    return Step(f"relief_{found.value}", counts.wanted, f"{load:.3g} replicas' work for {ready} ready ones: {why}")


def relief_without_model(
    last: Relief, urgent_waiting: float, waiting: float, crowded_at: float, counts: ReplicaCounts
) -> Step | None:
    """Return what to give up while there is no reliable step model. Work can't be counted then, waiting requests can.

    Routers choose the requests to refuse by how fast the line moves, not by the model. So they refuse none that would
    be in time.

    Args:
        last: the relief before. It stays while requests wait, because it may be what keeps the line short.
        urgent_waiting: requests that wait, without batch work.
        waiting: all requests that wait.
        crowded_at: waiting requests above which the group is crowded.
        counts: the group's replicas.
    """
    if urgent_waiting > crowded_at or (last is Relief.SHED and urgent_waiting > 0):
        found, why = Relief.SHED, "requests that would wait too long are to be refused"
        if counts.to_come > 0:
            found, why = Relief.PREEMPT_BATCH, f"{counts.to_come} are to come, so nobody is refused"
    elif last is not Relief.NONE and waiting > 0:
        found, why = min(last, Relief.PREEMPT_BATCH, key=list(Relief).index), "as before"
    else:
        return None
    return Step(
        f"relief_{found.value}", counts.wanted, f"{waiting:.0f} wait and no step model tells for how long: {why}"
    )
