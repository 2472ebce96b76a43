"""The replicas of a pool: starting, ready, draining, removed; and what they cost."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

from cluster.settings import SimSettings
from loadtest.simulate.autoscalers.contract import FastPolicy
from loadtest.simulate.engine.replica import SimReplica
from loadtest.simulate.engine.steps import StepTimes
from penstock.models import ReplicaState, RequestClass
from penstock.values.steps import Relief

REVERSAL_WITHIN_S = 1800.0
"""A change of the replica count the other way within this time of the last one is a reversal."""


@dataclass(slots=True, eq=False)
class Member:
    """Is one replica with its life."""

    replica: SimReplica
    created_at: float
    ready_at: float
    removed_at: float | None = None
    fast: FastPolicy | None = None
    due_at: float | None = None
    """When its planned steps are over, as the event loop knows."""
    steps_seen: int = 0
    """Steps that the fast policy has been shown."""
    started: list[RequestClass] = field(default_factory=list)
    """Since the fast policy looked last."""
    relief: Relief = Relief.NONE
    """What the pool gives up, as the last heartbeat brought it."""

    @property
    def name(self) -> str:
        """Its replica id."""
        return self.replica.name

    @property
    def state(self) -> ReplicaState:
        """Its state as the queue sees it."""
        return self.replica.state


@dataclass(slots=True)
class Change:
    """Is what a new desired count sets in motion."""

    started: list[Member] = field(default_factory=list)
    cancelled: list[Member] = field(default_factory=list)
    draining: list[Member] = field(default_factory=list)


class Fleet:
    """Starts and removes replicas as Ray Serve does: to shrink, those that still start go first, then the newest."""

    def __init__(
        self, engine: SimSettings, cold_start_s: float, block_tokens: int | None = None, times: StepTimes | None = None
    ) -> None:
        self._engine = engine
        self._cold_start_s = cold_start_s
        self._block_tokens = block_tokens
        self._times = times
        self._numbers = itertools.count()
        self.members: dict[str, Member] = {}
        """All that starts, serves or drains, oldest first."""
        self.gone: list[Member] = []
        self.desired = 0
        self.changes: list[tuple[float, int]] = []
        """(when, to how many) of every change of the desired count after the first."""

    def begin(self, count: int, now: float) -> list[Member]:
        """Have replicas that are ready from the first moment."""
        self.desired = count
        started = [self._start(now, now) for _ in range(count)]
        for member in started:
            member.replica.state = ReplicaState.READY
        return started

    def want(self, count: int, now: float) -> Change:
        """Take a new desired count."""
        if count != self.desired:
            self.desired = count
            self.changes.append((now, count))
        return self.settle(now)

    def settle(self, now: float) -> Change:
        """Start what is missing, also in the place of what died, and remove what is too much."""
        change = Change()
        kept = [member for member in self.members.values() if member.state is not ReplicaState.DRAINING]
        for _ in range(self.desired - len(kept)):
            change.started.append(self._start(now, now + self._cold_start_s))
        surplus = len(kept) - self.desired
        if surplus > 0:
            kept.sort(key=lambda member: (member.state is ReplicaState.STARTING, member.created_at))
            for member in kept[-surplus:]:
                if member.state is ReplicaState.STARTING:
                    self.remove(member, now)
                    change.cancelled.append(member)
                else:
                    member.replica.state = ReplicaState.DRAINING
                    change.draining.append(member)
        return change

    def remove(self, member: Member, now: float) -> None:
        """Take a replica out; it costs nothing from now on."""
        member.removed_at = now
        del self.members[member.name]
        self.gone.append(member)

    def count(self, state: ReplicaState) -> int:
        """Return how many replicas are in a state."""
        return sum(1 for member in self.members.values() if member.state is state)

    def hours(self, until: float, since: float = 0.0) -> float:
        """Return the hours of all replicas between two times, those that started or drained included."""
        every = [*self.gone, *self.members.values()]
        ends = (until if each.removed_at is None else min(until, each.removed_at) for each in every)
        return sum(max(0.0, end - max(since, each.created_at)) for each, end in zip(every, ends, strict=True)) / 3600

    def reversals(self, first: int, until: float = math.inf, since: float = 0.0) -> int:
        """Count changes of direction shortly after the change before, whenever that was, between two times. `first`:
        the count at the beginning.
        """
        found, last_at, last_direction, count = 0, 0.0, 0, first
        for at, new in self.changes:
            direction = 1 if new > count else -1
            against = last_direction == -direction and at - last_at <= REVERSAL_WITHIN_S
            found += against and since <= at < until
            last_at, last_direction, count = at, direction, new
        return found

    def _start(self, now: float, ready_at: float) -> Member:
        replica = SimReplica(f"r{next(self._numbers)}", self._engine, self._block_tokens, self._times)
        replica.state = ReplicaState.STARTING
        member = self.members[replica.name] = Member(replica, now, ready_at)
        return member
