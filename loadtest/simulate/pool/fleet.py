"""Replicas of a pool: starting, ready, draining, removed; and their hours."""

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
"""Seconds after a change of the replica count within which a change in the other direction is a reversal."""


@dataclass(slots=True, eq=False)
class Member:
    """One replica from its order to its removal."""

    replica: SimReplica
    created_at: float
    ready_at: float
    removed_at: float | None = None
    fast: FastPolicy | None = None
    due_at: float | None = None
    """End of its planned steps, as the event loop knows it."""
    steps_seen: int = 0
    """Steps that the batch policy has been shown."""
    started: list[RequestClass] = field(default_factory=list)
    """Requests started since the batch policy looked last."""
    relief: Relief = Relief.NONE
    """Relief of the pool, as of the last heartbeat."""

    @property
    def name(self) -> str:
        """Replica id."""
        return self.replica.name

    @property
    def state(self) -> ReplicaState:
        """State as the queue sees it."""
        return self.replica.state


@dataclass(slots=True)
class Change:
    """Replicas that a new desired count starts or ends."""

    started: list[Member] = field(default_factory=list)
    cancelled: list[Member] = field(default_factory=list)
    draining: list[Member] = field(default_factory=list)


class Fleet:
    """Replicas that start and end as under Ray Serve: to shrink, those that still start go first, then the newest."""

    def __init__(
        self, engine: SimSettings, cold_start_s: float, block_tokens: int | None = None, times: StepTimes | None = None
    ) -> None:
        self._engine = engine
        self._cold_start_s = cold_start_s
        self._block_tokens = block_tokens
        self._times = times
        self._numbers = itertools.count()
        self.members: dict[str, Member] = {}
        """All that start, serve or drain, oldest first."""
        self.gone: list[Member] = []
        self.desired = 0
        self.changes: list[tuple[float, int]] = []
        """Time and new number of every change of the desired count after the first."""

    def begin(self, count: int, now: float) -> list[Member]:
        """Return replicas that are ready from the first moment."""
        self.desired = count
        started = [self._start(now, now) for _ in range(count)]
        for member in started:
            member.replica.state = ReplicaState.READY
        return started

    def want(self, count: int, now: float) -> Change:
        if count != self.desired:
            self.desired = count
            self.changes.append((now, count))
        return self.settle(now)

    def settle(self, now: float) -> Change:
        """Start missing replicas, also in the place of dead ones, and remove surplus ones."""
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
        """Remove a replica. It costs nothing from now on."""
        member.removed_at = now
        del self.members[member.name]
        self.gone.append(member)

    def count(self, state: ReplicaState) -> int:
        return sum(1 for member in self.members.values() if member.state is state)

    def hours(self, until: float, since: float = 0.0) -> float:
        """Return the hours of all replicas between two times, with those that started or drained."""
        every = [*self.gone, *self.members.values()]
        ends = (until if each.removed_at is None else min(until, each.removed_at) for each in every)
        return sum(max(0.0, end - max(since, each.created_at)) for each, end in zip(every, ends, strict=True)) / 3600

    def reversals(self, first: int, until: float = math.inf, since: float = 0.0) -> int:
        """Return the changes of direction between two times that came shortly after the previous change, whenever that
        was. `first` is the count at the beginning.
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
