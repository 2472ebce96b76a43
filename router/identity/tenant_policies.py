"""The share and the quota of each tenant in each pool."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cluster.queue.entries import Quota
from cluster.settings import QueueSettings, QuotaSettings, Settings, TenantSettings


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """Share and quota of a tenant in one pool."""

    weight: float
    quota: Quota


class TenantPolicies:
    """Policies of all tenants."""

    def __init__(self, settings: Settings, tenants: Mapping[str, TenantSettings] | None = None) -> None:
        """`tenants` are the tenants in force; default: those of the settings."""
        self._tenants = settings.tenants if tenants is None else tenants
        self._default = settings.default_tenant
        self._queue = settings.queue

    @property
    def named(self) -> Collection[str]:
        """Tenants with settings of their own."""
        return self._tenants.keys()

    def of(self, tenant: str, pool: str) -> TenantPolicy:
        """Return a tenant's policy in a pool; tenants without settings of their own get the default."""
        settings = self._tenants.get(tenant, self._default)
        return TenantPolicy(settings.weight, _quota(settings, settings.pools.get(pool, settings.quota), self._queue))


def _quota(tenant: TenantSettings, quota: QuotaSettings, queue: QueueSettings) -> Quota:
    return Quota(
        tokens_per_minute=quota.tokens_per_minute,
        requests_per_minute=quota.requests_per_minute,
        concurrency=quota.concurrency,
        strict=quota.mode == "strict",
        max_waiting=tenant.max_waiting or queue.max_waiting_per_tenant,
        cost_per_day=quota.cost_per_day,
        cost_per_month=quota.cost_per_month,
        warn_at=quota.warn_at,
    )
