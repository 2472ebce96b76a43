"""Replicas of a pool: starting, ready, standing by, draining, removed; and their hours."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Protocol

from cluster.settings import SimSettings
from loadtest.simulate.autoscalers.contract import FastPolicy
from loadtest.simulate.engine.replica import SimReplica
from loadtest.simulate.engine.steps import StepTimes
from loadtest.simulate.setup import SlowNodes
from penstock.models import ReplicaState, RequestClass
from penstock.values.steps import Relief

REVERSAL_WITHIN_S = 1800.0
"""Seconds after a change of the replica count within which a change in the other direction is a reversal."""


class ReplicaMaker(Protocol):
    """What makes a replica."""

    def __call__(
        self,
        name: str,
        settings: SimSettings,
        block_tokens: int | None = None,
        step_times: StepTimes | None = None,
        /,
        *,
        whole_log: bool = True,
    ) -> SimReplica: ...


class GpuShare(Protocol):
    """A pool's part of GPUs that several pools share."""

    def take(self) -> bool:
        """Take the GPUs of one replica. Return False if too few are free."""
        ...

    def give(self, now: float) -> None:
        """Give back the GPUs of one replica."""
        ...

    def lacks(self, replicas: int, now: float) -> None:
        """Say how many replicas could not start."""
        ...


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
    waking: bool = False
    """Whether it has been told to wake, and is a standby still."""
    asleep_at: float | None = None
    """Since when its engine sleeps; None while it is awake."""
    naps: list[tuple[float, float]] = field(default_factory=list)
    """Past sleeps, from and to."""

    def fall_asleep(self, now: float) -> None:
        """Let the engine sleep, if it stands by and nothing runs any more."""
        if self.state is ReplicaState.STANDBY and not self.replica.running and self.asleep_at is None:
            self.asleep_at = now

    def get_up(self, now: float) -> None:
        """End the sleep. The wake-up costs as much as work."""
        if self.asleep_at is not None:
            self.naps.append((self.asleep_at, now))
            self.asleep_at = None

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
    resting: list[Member] = field(default_factory=list)
    """Those that stand by from now on."""
    waking: list[tuple[Member, float]] = field(default_factory=list)
    """Those that are told to wake, with the seconds that it takes."""


class Fleet:
    """Replicas that start and end as under Ray Serve: to shrink, those that still start go first, then the newest. The
    oldest serve, the others stand by.
    """

    def __init__(
        self,
        engine: SimSettings,
        cold_start_s: float,
        block_tokens: int | None = None,
        times: StepTimes | None = None,
        *,
        whole_logs: bool = True,
        make: ReplicaMaker = SimReplica,
    ) -> None:
        """`whole_logs`: whether the logs of steps have all columns. `make` makes the replicas."""
        self._whole_logs, self._make = whole_logs, make
        self._engine = engine
        self._cold_start_s = cold_start_s
        self._block_tokens = block_tokens
        self._times = times
        self._numbers = itertools.count()
        self.members: dict[str, Member] = {}
        """All that start, serve or drain, oldest first."""
        self.gone: list[Member] = []
        self.died = 0
        """Number of those gone that did not end as ordered."""
        self.desired = 0
        """Replicas that are to serve."""
        self.standby = 0
        """Replicas that are to stand by beside them."""
        self.slow = SlowNodes()
        """Those whose steps take longer."""
        self.wake_s = 20.0
        """Duration of a wake-up."""
        self.gpus: GpuShare | None = None
        """GPUs that the replicas share with other pools; None for as many as they need."""
        self.changes: list[tuple[float, int]] = []
        """Time and new number of every change of the desired count after the first."""

    @property
    def started(self) -> int:
        """Number of replicas that were started so far."""
        return len(self.gone) + len(self.members)

    def begin(self, count: int, now: float) -> list[Member]:
        """Return replicas that are ready from the first moment."""
        self.desired = count
        if self.gpus is not None and not all(self.gpus.take() for _ in range(count)):
            raise ValueError(f"there are too few GPUs for {count} replicas at first")
        started = [self._start(now, now) for _ in range(count)]
        for member in started:
            member.replica.state = ReplicaState.READY
        return started

    def want(self, count: int, now: float, standby: int = 0) -> Change:
        if count != self.desired:
            self.desired = count
            self.changes.append((now, count))
        self.standby = standby
        change = self.settle(now)
        self._hold(change, now)
        return change

    def settle(self, now: float) -> Change:
        """Start missing replicas, also in the place of dead ones, and remove surplus ones."""
        change = Change()
        kept = [member for member in self.members.values() if member.state is not ReplicaState.DRAINING]
        total = self.desired + self.standby
        missing = total - len(kept)
        while missing > 0 and (self.gpus is None or self.gpus.take()):
            change.started.append(self._start(now, now + self._cold_start_s))
            missing -= 1
        if self.gpus is not None:
            self.gpus.lacks(max(0, missing), now)
        surplus = len(kept) - total
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

    def _hold(self, change: Change, now: float) -> None:
        """Order the oldest to serve, and the others to stand by."""
        states = (ReplicaState.READY, ReplicaState.STANDBY)
        loaded = sorted((each for each in self.members.values() if each.state in states), key=lambda m: m.created_at)
        for place, member in enumerate(loaded):
            if place >= self.desired and member.state is ReplicaState.READY:
                member.replica.state = ReplicaState.STANDBY
                change.resting.append(member)
            elif place < self.desired and member.state is ReplicaState.STANDBY and not member.waking:
                member.waking = True
                change.waking.append((member, 0.0 if member.asleep_at is None else self.wake_s))
                member.get_up(now)

    def remove(self, member: Member, now: float) -> None:
        """Remove a replica. It costs nothing from now on."""
        member.get_up(now)
        member.removed_at = now
        del self.members[member.name]
        self.gone.append(member)
        if self.gpus is not None:
            self.gpus.give(now)

    def count(self, state: ReplicaState) -> int:
        return sum(1 for member in self.members.values() if member.state is state)

    def hours(self, until: float, since: float = 0.0) -> float:
        """Return the hours of all replicas between two times, with those that started or drained."""
        every = [*self.gone, *self.members.values()]
        ends = (until if each.removed_at is None else min(until, each.removed_at) for each in every)
        return sum([max(0.0, end - max(since, each.created_at)) for each, end in zip(every, ends, strict=True)]) / 3600

    def asleep_hours(self, until: float, since: float = 0.0) -> float:
        """Return the part of these hours in which engines slept."""
        every = [*self.gone, *self.members.values()]
        naps = [nap for each in every for nap in each.naps]
        naps += [(each.asleep_at, until) for each in every if each.asleep_at is not None]
        return sum([max(0.0, min(until, end) - max(since, begin)) for begin, end in naps]) / 3600

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
        name = f"r{next(self._numbers)}"
        times = self._times
        if self.slow.replicas > int(name[1:]):
            times = (times or StepTimes.of(self._engine)).times(self.slow.factor)
        replica = self._make(name, self._engine, self._block_tokens, times, whole_log=self._whole_logs)
        replica.state = ReplicaState.STARTING
        member = self.members[replica.name] = Member(replica, now, ready_at)
        return member
