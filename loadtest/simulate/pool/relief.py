"""Says what a simulated pool gives up while it has too few replicas, by the way that production takes.

The leader stores it with its decision; heartbeats bring it to routers and replicas, and it ends by itself.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from cluster.autoscaler.memory.store import MemoryControlStore
from cluster.autoscaler.scaler import RELIEF_TICKS
from cluster.autoscaler.store import Commit
from cluster.queue.memory.queue import MemoryStore
from loadtest.simulate.autoscalers.contract import SlowPolicy
from loadtest.simulate.pool.loop import now
from penstock.values.slo import OperatingPoint
from penstock.values.steps import Relief

_LEADER = "simulator"


@runtime_checkable
class Relieving(SlowPolicy, Protocol):
    """Is a slow policy that also says what to give up."""

    point: OperatingPoint
    """What it promises."""

    @property
    def relief(self) -> Relief:
        """What its last decision gives up."""
        ...


class ReliefOrders:
    """Stores what a slow policy gives up where heartbeats find it.

    Args:
        policy: of the pool.
        store: the queue's.
        pool: its name there.
        period_s: between two decisions, in seconds.
    """

    def __init__(self, policy: Relieving, store: MemoryStore, pool: str, period_s: float) -> None:
        self._policy = policy
        self._store = MemoryControlStore(store, pool)
        self._holds_s = RELIEF_TICKS * period_s

    def publish(self, replicas: int, now_ms: int) -> None:
        """Store the last decision's relief, next to its number of replicas; the time is the pool's."""
        lead = now(self._store.lead(_LEADER, self._holds_s))
        commit = Commit(b"", replicas, self._policy.relief, now_ms + round(self._holds_s * 1000), b"", keep=1)
        now(self._store.commit(_LEADER, lead.fence, commit))
