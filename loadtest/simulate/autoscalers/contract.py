"""The seam between the simulator and whoever decides: what a policy sees, and what it answers.

A fast policy sits in a replica and sees only that replica; it moves the live batch limit. A slow policy sees the pool
and names a replica count. Both are asked at fixed times, may remember, and must not read any clock but the snapshot's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from penstock.models import ReplicaState, RequestClass
from penstock.values.steps import Relief


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Are the steps that a replica began since the last look, one column per figure."""

    seconds: Sequence[float] = ()
    sequences: Sequence[int] = ()
    tokens: Sequence[int] = ()
    kv_tokens: Sequence[int] = ()
    decoded: Sequence[int] = ()
    """Sequences whose last token came in the step before."""


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """Is what a replica knows of itself."""

    replica_id: str
    now_s: float
    state: ReplicaState
    age_s: float
    """Since it was asked for, the cold start included."""
    limit: int = 0
    """The live batch limit."""
    largest_limit: int = 0
    """The batch that the engine was started with."""
    running: int = 0
    """Sequences in the batch."""
    waiting: int = 0
    """Sequences that hold a slot and are not in the batch."""
    kv_usage: float = 0.0
    """0 to 1."""
    kv_tokens: int = 0
    """Capacity."""
    step_tokens: int = 0
    """The most that one step computes."""
    preemptions: int = 0
    """By a full KV cache, since it started."""
    steps: StepColumns = field(default_factory=StepColumns)
    """This and what follows, but for `relief`: in a fast policy's snapshot only."""
    running_by_class: Mapping[RequestClass, int] = field(default_factory=dict)
    """Requests that hold a slot."""
    started: Sequence[RequestClass] = ()
    """Of requests that got a slot since the last look."""
    relief: Relief = Relief.NONE
    """What the pool gives up, as its last heartbeat brought it."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Is a request as the router saw it come."""

    at_s: float
    request_class: RequestClass
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Is a request as the router saw it end well."""

    at_s: float
    request_class: RequestClass
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float
    itl_p95_s: float
    """0 with fewer than two tokens."""
    itl_mean_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """Is what the leader knows of a pool."""

    now_s: float
    desired: int
    """What was decided last."""
    cold_start_s: float
    """From the decision to a ready replica, as measured."""
    replicas: Sequence[ReplicaSnapshot] = ()
    """All that starts, serves or drains."""
    waiting: Mapping[RequestClass, int] = field(default_factory=dict)
    oldest_wait_s: Mapping[RequestClass, float] = field(default_factory=dict)
    arrived: Sequence[Arrival] = ()
    """Since the last look."""
    ended: Sequence[Ended] = ()
    """Since the last look."""
    turned_away: Sequence[RequestClass] = ()
    """Of requests that were refused for want of room since the last look; they are in `arrived` too."""

    def count(self, state: ReplicaState) -> int:
        """Return how many replicas are in a state."""
        return sum(1 for replica in self.replicas if replica.state is state)


class FastPolicy(Protocol):
    """Decides a replica's live batch limit."""

    def decide(self, snapshot: ReplicaSnapshot) -> int:
        """Return the limit; it is clamped to 1 and the engine's largest."""
        ...


class SlowPolicy(Protocol):
    """Decides a pool's replica count."""

    def decide(self, snapshot: PoolSnapshot) -> int:
        """Return the desired count; it is clamped to the pool's bounds."""
        ...


@dataclass(frozen=True, slots=True)
class Static:
    """Keeps a number, as a batch limit or as a replica count."""

    number: int

    def decide(self, snapshot: ReplicaSnapshot | PoolSnapshot) -> int:
        """Return the number."""
        return self.number


FastFactory: TypeAlias = Callable[[], FastPolicy]
"""Makes one policy per replica."""
