"""Relief of a simulated pool while it has too few replicas, on the same way as in production.

The leader stores the relief with its decision. Heartbeats bring it to routers and replicas. It ends by itself.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from cluster.autoscaler.redis.store import RedisControlStore
from cluster.autoscaler.scaler import RELIEF_TICKS
from cluster.autoscaler.store import Commit
from cluster.redis.in_process.server import InProcessRedis
from loadtest.simulate.autoscalers.contract import SlowPolicy
from loadtest.simulate.pool.loop import now
from penstock.values.slo import OperatingPoint
from penstock.values.steps import Relief

_LEADER = "simulator"


@runtime_checkable
class Relieving(SlowPolicy, Protocol):
    """A replica policy that also decides about relief."""

    point: OperatingPoint
    """Operating point of the policy."""

    @property
    def relief(self) -> Relief:
        """Relief of the last decision."""
        ...


class ReliefOrders:
    """Store of a replica policy's relief, where heartbeats find it.

    Args:
        policy: of the pool.
        store: the queue's server; None for a queue that has none.
        pool: its name there.
        period_s: seconds between two decisions.
    """

    def __init__(self, policy: Relieving, store: InProcessRedis | None, pool: str, period_s: float) -> None:
        self._policy = policy
        self._store = None if store is None else RedisControlStore(store, pool)
        self._holds_s = RELIEF_TICKS * period_s

    def publish(self, replicas: int, now_ms: int) -> tuple[Relief, int]:
        """Store the last decision's relief with its number of replicas. Return it with the milliseconds until which it
        holds. The time is the pool's.
        """
        until_ms = now_ms + round(self._holds_s * 1000)
        if self._store is not None:
            lead = now(self._store.lead(_LEADER, self._holds_s))
            commit = Commit(b"", replicas, self._policy.relief, until_ms, b"", keep=1)
            now(self._store.commit(_LEADER, lead.fence, commit))
        return self._policy.relief, until_ms
