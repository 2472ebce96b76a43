"""Settings of the queue: order, shares, and tenants' weights and quotas."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

from pydantic import Field, model_validator

from cluster.settings.section import PoolName, Section

LEAST_WEIGHT = 0.001
"""Least weight of a tenant. Served tokens are counted per weight, in integers that a long prompt would overflow with a
much smaller weight."""
MOST = 10**12
"""Largest value of anything that is counted. Redis' scripts compute in doubles, and their arguments cannot hold
integers of any size."""


class ClassShares(Section):
    """Part of the served tokens that is reserved for each class while others compete with it; at most 1 together."""

    interactive: float = Field(default=0.0, ge=0, le=1)
    """Reserved part of class INTERACTIVE. 0 is usual: beside the reserved parts the most urgent class comes first."""
    standard: float = Field(default=0.2, ge=0, le=1)
    """Reserved part of class STANDARD."""
    batch: float = Field(default=0.05, ge=0, le=1)
    """Reserved part of class BATCH."""

    @model_validator(mode="after")
    def _at_most_everything(self) -> ClassShares:
        total = self.interactive + self.standard + self.batch
        if total > 1:
            raise ValueError(f"the shares must add up to at most 1, got {total:g}")
        return self


class QueueSettings(Section):
    """The queue: order, shares, leases and limits. The values must be equal on all routers and replicas of a pool."""

    lease_s: float = Field(default=4.0, ge=0.2, le=60)
    """Seconds without a heartbeat after which a router or replica counts as dead and its work is recovered. At least
    three times heartbeat_s."""
    heartbeat_s: float = Field(default=1.0, ge=0.05, le=20)
    """Seconds between two heartbeats of a router or replica."""
    attach_grace_s: float = Field(default=5.0, ge=0, le=600)
    """Seconds for which a request runs on and its output is kept, so that it can be resumed, after its router is lost
    or, with an idempotency key, its client's connection."""
    max_waiting: int = Field(default=100_000, ge=1, le=MOST)
    """Most requests that wait in a pool, all tenants together. Further ones are refused with QUEUE_FULL."""
    max_waiting_per_tenant: int = Field(default=20_000, ge=1, le=MOST)
    """Most requests of one tenant and class that wait in a pool."""
    lookahead: int = Field(default=16, ge=1, le=64)
    """Number of waiting requests among which one that prefers the free replica is searched. Also the number of times
    that a request may be passed over in this way. Raise it for more hits in prefix caches, lower it for a stricter
    order."""
    late_last: bool = True
    """Whether requests that can still meet their class's time to first token overtake requests of the same tenant that
    have missed it; false serves each tenant in the order of arrival."""
    class_shares: ClassShares = ClassShares()
    """Reserved parts of the classes."""
    preempt_after_s: float = Field(default=0.5, ge=0, le=600)
    """Seconds that an interactive request waits until it preempts batch work; 0 never preempts."""
    preempt_quantum_s: float = Field(default=2.0, ge=0, le=600)
    """Seconds that a sequence runs at least before it can be preempted."""
    max_preemptions: int = Field(default=2, ge=0, le=100)
    """Most times that one request is preempted."""
    result_s: float = Field(default=600.0, ge=0, le=86_400)
    """Seconds for which the result of a request with an idempotency key is kept; 0 keeps none."""
    max_result_mb: int = Field(default=256, ge=1)
    """Most MiB of kept results of a pool; above it the oldest are dropped first."""
    ledger_days: int = Field(default=62, ge=0, le=3660)
    """Number of days for which the ledger of usage is kept, today included; 0 keeps no ledger."""

    @model_validator(mode="after")
    def _lease_outlives_heartbeats(self) -> QueueSettings:
        # Half a lease without any heartbeat counts as a gap in which no process could renew: every process gets another
        # lease. The period of a single process must stay well below that, or dead ones would be kept alive for ever.
        if round(self.lease_s * 1000) < 3 * round(self.heartbeat_s * 1000):
            raise ValueError(
                f"lease_s must be at least 3 x heartbeat_s = {3 * self.heartbeat_s:g}, got {self.lease_s:g}"
            )
        return self


class QuotaSettings(Section):
    """Limits of what a tenant may use of a pool, exact over all routers; 0 is no limit."""

    tokens_per_minute: int = Field(default=0, ge=0, le=MOST)
    """Prompt and output tokens per minute. A token bucket that holds one minute's worth and refills continuously."""
    requests_per_minute: int = Field(default=0, ge=0, le=MOST)
    """Requests per minute, as a token bucket in the same way."""
    concurrency: int = Field(default=0, ge=0, le=MOST)
    """Most choices that wait or run at a time."""
    cost_per_day: float = Field(default=0.0, ge=0, le=MOST)
    """Budget per day in UTC, in the currency of the prices: most that the ledger charges before requests are refused.
    What was let in before may exceed it. Needs queue.ledger_days of at least 1."""
    cost_per_month: float = Field(default=0.0, ge=0, le=MOST)
    """Budget per calendar month in UTC, in the same way. Needs queue.ledger_days of at least 31."""
    warn_at: float = Field(default=0.8, gt=0, le=1)
    """Used part of a budget from which the tenant and the operators are warned."""
    mode: Literal["settled", "strict"] = "settled"
    """Way to charge tokens. "settled" reserves what the tenant's requests are likely to produce and corrects it at
    their end, so that the bucket may go into debt. "strict" takes prompt and max_tokens at once and returns nothing for
    tokens that a started request did not use."""


class TenantSettings(Section):
    """A tenant's weight, limits and quotas."""

    weight: float = Field(default=1.0, ge=LEAST_WEIGHT, le=1000)
    """Weight of the tenant's share of each class, relative to the other tenants' weights."""
    max_waiting: int | None = Field(default=None, ge=1, le=MOST)
    """Most requests of one class that wait in a pool. Default: queue.max_waiting_per_tenant."""
    quota: QuotaSettings = QuotaSettings()
    """Quota in every pool; each pool is counted on its own."""
    pools: dict[PoolName, QuotaSettings] = {}  # noqa: RUF012 - pydantic copies it
    """Quotas by pool, for pools where another one than `quota` holds."""
    models: tuple[PoolName, ...] | None = None
    """Models that its callers may use, whatever their keys allow. Absent: all."""
    classes: tuple[Literal["interactive", "standard", "batch"], ...] | None = None
    """Request classes that its callers may use, whatever their keys allow. Absent: all."""

    def problems(self, pools: Collection[str], ledger_days: int) -> Iterator[tuple[str, str]]:
        """Yield what does not fit the rest of the settings, as field and problem.

        Args:
            pools: names of all pools. A misspelt name would leave the intended pool without a quota.
            ledger_days: the setting queue.ledger_days, without which budgets could not be kept.
        """
        for name in self.pools:
            if name not in pools:
                yield f"pools.{name}", f"must be one of the pools {', '.join(pools)}"
        parts = [("quota", self.quota), *((f"pools.{name}", quota) for name, quota in self.pools.items())]
        for part, quota in parts:
            for budget, days in (("cost_per_day", 1), ("cost_per_month", 31)):
                if getattr(quota, budget) and ledger_days < days:
                    yield f"{part}.{budget}", f"queue.ledger_days must be at least {days} for it, got {ledger_days}"
