"""The queue: order, shares, quotas, and what tenants get."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cluster.settings.section import PoolName, Section

LEAST_WEIGHT = 0.001
"""A tenant's. What it is served is counted per weight, in integers that a long prompt would overflow by much less."""
MOST = 10**12
"""Of anything that is counted. Redis' scripts compute in doubles, and their arguments hold no integer of any size."""


class ClassShares(Section):
    """Reserves a part of the served tokens for a class while others compete with it."""

    interactive: float = Field(default=0.0, ge=0, le=1)
    standard: float = Field(default=0.2, ge=0, le=1)
    batch: float = Field(default=0.05, ge=0, le=1)

    @model_validator(mode="after")
    def _at_most_everything(self) -> ClassShares:
        total = self.interactive + self.standard + self.batch
        if total > 1:
            raise ValueError(f"the shares must add up to at most 1, got {total:g}")
        return self


class QueueSettings(Section):
    """Are the queue's constants; the same on every router and replica of a pool."""

    lease_s: float = Field(default=4.0, ge=0.2, le=60)
    heartbeat_s: float = Field(default=1.0, ge=0.05, le=20)
    attach_grace_s: float = Field(default=5.0, ge=0, le=600)
    max_waiting: int = Field(default=100_000, ge=1, le=MOST)
    """Requests that may wait in a pool, all tenants together."""
    max_waiting_per_tenant: int = Field(default=20_000, ge=1, le=MOST)
    """Requests of one tenant and class that may wait in a pool."""
    lookahead: int = Field(default=16, ge=1, le=64)
    """Waiting requests that are looked at for one that prefers the free replica, and how often one is passed over."""
    late_last: bool = True
    """Whether requests that have missed the time to first token that their class is promised let those of their tenant
    pass that have not; false serves each tenant in the order of arrival."""
    class_shares: ClassShares = ClassShares()
    preempt_after_s: float = Field(default=0.5, ge=0, le=600)
    """Batch work gives way to interactive requests that have waited so long; 0 is never."""
    preempt_quantum_s: float = Field(default=2.0, ge=0, le=600)
    """A sequence runs at least so long before it gives way."""
    max_preemptions: int = Field(default=2, ge=0, le=100)
    """Times that one request gives way."""
    result_s: float = Field(default=600.0, ge=0, le=86_400)
    """How long the result of a request with an idempotency key is kept; 0 keeps none."""
    max_result_mb: int = Field(default=256, ge=1)
    """Kept results of a pool; the oldest go first."""
    ledger_days: int = Field(default=62, ge=0, le=3660)
    """Days of which the ledger is kept, today included; 0 keeps none."""

    @model_validator(mode="after")
    def _lease_outlives_heartbeats(self) -> QueueSettings:
        # Half a lease without any heartbeat counts as a gap in which nobody could renew, and gives everybody another
        # one. Who beats alone must stay well below it, or the dead would live for ever.
        if round(self.lease_s * 1000) < 3 * round(self.heartbeat_s * 1000):
            raise ValueError(
                f"lease_s must be at least 3 x heartbeat_s = {3 * self.heartbeat_s:g}, got {self.lease_s:g}"
            )
        return self


class QuotaSettings(Section):
    """Bounds what a tenant may use of a pool; 0 is no bound. Exact over all routers."""

    tokens_per_minute: int = Field(default=0, ge=0, le=MOST)
    """Prompt and output tokens. A bucket of one minute's worth, filling up over time."""
    requests_per_minute: int = Field(default=0, ge=0, le=MOST)
    concurrency: int = Field(default=0, ge=0, le=MOST)
    """Choices that wait or run at a time."""
    mode: Literal["settled", "strict"] = "settled"
    """"settled" reserves what the tenant's requests are likely to produce and corrects it at the end, debt allowed;
    "strict" takes prompt and max_tokens at once and returns nothing of what was granted."""


class TenantSettings(Section):
    """Says what a tenant gets."""

    weight: float = Field(default=1.0, ge=LEAST_WEIGHT, le=1000)
    """Its share of a class, against the other tenants' weights."""
    max_waiting: int | None = Field(default=None, ge=1, le=MOST)
    """Requests of one class that may wait in a pool; default: queue.max_waiting_per_tenant."""
    quota: QuotaSettings = QuotaSettings()
    """In every pool, each counted on its own."""
    pools: dict[PoolName, QuotaSettings] = {}  # noqa: RUF012 - pydantic copies it
    """In these pools instead of `quota`."""
