"""Standbys of a pool as its leader sees and orders them. Pure.

A standby is a replica that its heartbeats report as one. Which replicas stand by is an order of the leader, in force
until a time; a replica without an order in force takes work. The oldest replicas serve, because the platform removes
the newest: what it removes then mostly stands by already.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cluster.control.rails import RailRules, backoff_left_s, is_stale
from cluster.control.snapshot import GroupSnapshot
from cluster.queue.heartbeats import PoolView, ReplicaRecord
from cluster.standby.rule import StandbyDecision, StandbyInput, StandbyLimits, StandbyState, decide_standby
from penstock.models import ReplicaState

_PART = 0.9
_OLDER_S = 30.0
"""Seconds by which a standby is older than a replica that serves before they change places."""


@dataclass(frozen=True, slots=True)
class StandbyOrder:
    """A decision on standbys, and who they are."""

    made: StandbyDecision
    names: tuple[str, ...] = ()
    """Replicas that are to stand by, those included that the platform removes next."""

    @property
    def number(self) -> int:
        """Standbys that are wanted."""
        return self.made.standby


@dataclass(frozen=True, slots=True)
class StandbyBounds:
    """Bounds of the replicas that serve or stand by."""

    largest: int
    affordable: int | None = None
    """Replicas that the budget pays for; None for no bound."""
    rails: RailRules = field(default_factory=RailRules)


def loaded(view: PoolView) -> list[ReplicaRecord]:
    """Return the replicas that take work or stand by."""
    return [one for one in view.replicas if one.state in (ReplicaState.READY, ReplicaState.STANDBY)]


def newcomers(view: PoolView, seconds: float) -> int:
    """Count the replicas that take work and were first ready within so many seconds."""
    return sum(one.state is ReplicaState.READY and _age_s(one) <= seconds for one in view.replicas)


def with_standbys(seen: GroupSnapshot, present: int, new: int, state: StandbyState) -> GroupSnapshot:
    """Return the snapshot in which standbys that are ordered to wake count as starting, and those that are not there
    yet and are to stand by do not. A standby that has just started works until it is told to stand by; it counts as
    one at once.

    Args:
        seen: the group.
        present: replicas that report that they stand by.
        new: replicas that are too new to have been told.
        state: of the last decision.
    """
    if not present and not state.standby:
        return seen
    ready = seen.ready
    if state.serving is not None:
        early = max(0, min(new, ready - state.serving, state.standby - present))
        ready, present = ready - early, present + early
    coming = seen.starting + present - state.standby
    if state.serving is not None:
        # What is beyond both numbers is about to be removed.
        coming = min(coming, state.serving - ready)
    coming = max(0, coming)
    return replace(seen, ready=ready, starting=coming, standby=max(0, present - coming))


def order_standbys(
    limits: StandbyLimits | None,
    seen: GroupSnapshot,
    view: PoolView,
    serving: int,
    state: StandbyState,
    bounds: StandbyBounds,
) -> StandbyOrder:
    """Decide how many replicas stand by beside `serving` ones, and which.

    Args:
        limits: of the settings; None where nobody may stand by: without an active autoscaler, and in a roll-out, in
            which each replica gives way in its turn.
        seen: the group, as `with_standbys` returned it.
        view: the queue's state.
        serving: replicas that were decided to serve.
        state: of the last decision.
        bounds: of the sum.
    """
    if limits is None:
        return StandbyOrder(StandbyDecision(0, replace(state, serving=serving, standby=0, names=())))
    records = loaded(view)
    state = replace(state, wake_s=_wake_s(records, state.wake_s))
    room = most_with_standbys(serving, bounds.largest, bounds.affordable, limits.price) - serving
    if backoff_left_s(seen, bounds.rails) > 0:
        # A standby that is not there yet would have to be started.
        room = min(room, max(0, len(records) - serving))
    facts = StandbyInput(seen.at, serving, seen.cold_start_s, room, stale=is_stale(seen, bounds.rails))
    made = decide_standby(limits, facts, state)
    names: tuple[str, ...] = ()
    if made.standby or standing(view):
        names = sleepers({one.replica_id: _age_s(one) for one in records}, serving, state.names)
    return StandbyOrder(replace(made, state=replace(made.state, names=names)), names)


def most_with_standbys(serving: int, most: int, affordable: float | None, price: float) -> int:
    """Return how many replicas there may be, serving or standing by.

    Args:
        serving: replicas that serve.
        most: bound of the settings.
        affordable: replicas that the budget pays for; None for no bound.
        price: of a standby, as part of that of a replica that serves.
    """
    if affordable is None or price <= 0:
        return most
    return min(most, serving + max(0, math.floor((affordable - serving) / price + 1e-9)))


def sleepers(ages: Mapping[str, float], serving: int, before: Collection[str] = ()) -> tuple[str, ...]:
    """Return the replicas that are to stand by, the oldest first: all but `serving` of the oldest.

    Ages of replicas that started together differ by chance, at each look by another one. So a standby and a replica
    that serves change places only where the standby is clearly older.

    Args:
        ages: seconds since each replica was first ready.
        serving: replicas that are to serve.
        before: those that were told to stand by.
    """

    def oldest_first(names: Collection[str]) -> list[str]:
        return sorted(names, key=lambda name: (-ages[name], name))

    resting = oldest_first([name for name in ages if name in before])
    awake = oldest_first([name for name in ages if name not in before])
    while len(awake) > max(0, serving):
        resting = oldest_first([*resting, awake.pop()])
    while resting and len(awake) < serving:
        awake = oldest_first([*awake, resting.pop(0)])
    while awake and resting and ages[resting[0]] > ages[awake[-1]] + _OLDER_S:
        older, newer = resting.pop(0), awake.pop()
        resting, awake = oldest_first([*resting, newer]), oldest_first([*awake, older])
    return tuple(resting)


def standing(view: PoolView) -> int:
    """Count the replicas that stand by."""
    return sum(one.state is ReplicaState.STANDBY for one in view.replicas)


def _age_s(record: ReplicaRecord) -> float:
    """Return the seconds since a replica was first ready."""
    return record.stats.get("up_s", 0.0) + record.heartbeat_age_ms / 1000


def _wake_s(records: Sequence[ReplicaRecord], known: float | None) -> float | None:
    """Return the seconds of a wake-up. Engines that can't sleep say that it takes none, which tells nothing of others:
    it counts only while there are no others.
    """
    sleepy = [one for one in records if "asleep" in one.stats]
    measured = sorted(one.stats["wake_s"] for one in sleepy or records if "wake_s" in one.stats)
    if measured:
        return measured[math.ceil(_PART * len(measured)) - 1]
    return known or None
