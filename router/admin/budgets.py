"""Budgets of tenants, and what is used of them."""

from __future__ import annotations

import calendar
import datetime
import time
from collections.abc import Iterable, Iterator

from cluster.queue.entries import Quota
from penstock.v1 import admin_pb2 as api
from router.dispatch.pool import Pool
from router.identity import TenantPolicies

_EPOCH = datetime.date(1970, 1, 1)


async def read_budgets(pool: Pool, tenants: Iterable[str], policies: TenantPolicies) -> list[api.Budget]:
    """Return the budgets of tenants in a pool.

    Raises:
        QueueUnavailableError: the ledger can't be read.
    """
    quotas = {tenant: policies.of(tenant, pool.name).quota for tenant in sorted(set(tenants))}
    bounded = {tenant: quota for tenant, quota in quotas.items() if quota.cost_per_day or quota.cost_per_month}
    # The queue counts days by Redis' clock.
    now_s = pool.beat.time_ms / 1000 if pool.beat is not None else time.time()
    today = datetime.datetime.fromtimestamp(now_s, datetime.UTC).date()
    first = (today.replace(day=1) - _EPOCH).days
    found = []
    for tenant, quota in bounded.items():
        lines = await pool.ledger.usage(tenant, first, (today - _EPOCH).days)
        by_day = {line.day: line.cost for line in lines}
        used = {"cost_per_day": by_day.get((today - _EPOCH).days, 0.0), "cost_per_month": sum(by_day.values())}
        found += [
            api.Budget(pool=pool.name, tenant=tenant, name=name, limit=limit, used=used[name], renews=_start(renews))
            for name, limit, renews in _limits(quota, today)
        ]
    return found


def _limits(quota: Quota, today: datetime.date) -> Iterator[tuple[str, float, datetime.date]]:
    if quota.cost_per_day:
        yield "cost_per_day", quota.cost_per_day, today + datetime.timedelta(days=1)
    if quota.cost_per_month:
        days = calendar.monthrange(today.year, today.month)[1]
        yield "cost_per_month", quota.cost_per_month, today.replace(day=1) + datetime.timedelta(days=days)


def _start(day: datetime.date) -> str:
    return f"{day.isoformat()}T00:00Z"
