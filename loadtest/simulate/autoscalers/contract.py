"""Contract between the simulator and policies: what a policy sees, and what it answers.

A batch policy (`FastPolicy`) runs in a replica, sees only that replica, and moves its live batch limit. A replica
policy (`SlowPolicy`) sees the pool and names a replica count. The simulator asks both at fixed times. They may
remember, and must not read any clock but the snapshot's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from penstock.models import ReplicaState, RequestClass
from penstock.values.steps import Relief


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Steps that a replica began since the last look, one column per figure."""

    seconds: Sequence[float] = ()
    sequences: Sequence[int] = ()
    tokens: Sequence[int] = ()
    kv_tokens: Sequence[int] = ()
    decoded: Sequence[int] = ()
    """Sequences whose last token came in the previous step."""


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """What a replica knows of itself."""

    replica_id: str
    now_s: float
    state: ReplicaState
    age_s: float
    """Seconds since it was ordered, with the cold start."""
    limit: int = 0
    """Live batch limit."""
    largest_limit: int = 0
    """Batch limit that the engine was started with."""
    running: int = 0
    """Sequences in the batch."""
    waiting: int = 0
    """Sequences that hold a slot and are not in the batch."""
    kv_usage: float = 0.0
    """0 to 1."""
    kv_tokens: int = 0
    """Capacity of the KV cache."""
    step_tokens: int = 0
    """The most tokens that one step computes."""
    preemptions: int = 0
    """Preemptions by a full KV cache since it started."""
    steps: StepColumns = field(default_factory=StepColumns)
    """This and all that follows but `relief` are only in a batch policy's snapshot."""
    running_by_class: Mapping[RequestClass, int] = field(default_factory=dict)
    """Requests that hold a slot."""
    started: Sequence[RequestClass] = ()
    """Classes of the requests that got a slot since the last look."""
    relief: Relief = Relief.NONE
    """Relief of the pool, as of the last heartbeat."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as the router saw it arrive."""

    at_s: float
    request_class: RequestClass
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A request as the router saw it complete."""

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
    """What the leader knows of a pool."""

    now_s: float
    desired: int
    """Replica count that was decided last."""
    cold_start_s: float
    """Seconds from the decision to a ready replica, as measured."""
    replicas: Sequence[ReplicaSnapshot] = ()
    """All that start, serve or drain."""
    waiting: Mapping[RequestClass, int] = field(default_factory=dict)
    oldest_wait_s: Mapping[RequestClass, float] = field(default_factory=dict)
    arrived: Sequence[Arrival] = ()
    """Since the last look."""
    ended: Sequence[Ended] = ()
    """Since the last look."""
    turned_away: Sequence[RequestClass] = ()
    """Classes of requests that were refused for lack of room since the last look. They are in `arrived` too."""

    def count(self, state: ReplicaState) -> int:
        return sum(1 for replica in self.replicas if replica.state is state)


class FastPolicy(Protocol):
    """Policy for a replica's live batch limit."""

    def decide(self, snapshot: ReplicaSnapshot) -> int:
        """Return the limit. The simulator clamps it to 1 and the engine's largest."""
        ...


class SlowPolicy(Protocol):
    """Policy for a pool's replica count."""

    def decide(self, snapshot: PoolSnapshot) -> int:
        """Return the desired count. The simulator clamps it to the pool's bounds."""
        ...


@runtime_checkable
class Holding(SlowPolicy, Protocol):
    """Policy that also keeps standbys."""

    @property
    def standby(self) -> int:
        """Standbys of the last decision, beside the replicas that serve."""
        ...


FastFactory: TypeAlias = Callable[[], FastPolicy]
"""Factory of one batch policy per replica."""
