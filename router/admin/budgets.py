"""Budgets of tenants, and what is used of them."""

from __future__ import annotations

import asyncio
import calendar
import datetime
import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from cluster.errors import QueueUnavailableError
from cluster.queue.entries import Quota
from cluster.queue.line import Line
from penstock.v1 import admin_pb2 as api
from router.dispatch.pool import Pool
from router.identity import TenantPolicies

_EPOCH = datetime.date(1970, 1, 1)
FRESH_S = 5.0
"""Age below which budgets are used again, so that many watchers cost no more than one."""
MOST_TENANTS = 64
"""Most tenants whose budgets are in a pool's status."""


@dataclass(slots=True)
class _Kept:
    """The newest look at the budgets of a pool."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    at: float | None = None
    found: list[api.Budget] = field(default_factory=list)


class BudgetWatch:
    """Source of the budgets in pools' status."""

    def __init__(self, policies: TenantPolicies) -> None:
        self._policies = policies
        self._kept = WeakKeyDictionary[Pool, _Kept]()

    async def of(self, pool: Pool, line: Line) -> list[api.Budget]:
        """Return the budgets of the tenants of a pool that matter most. None while Redis does not answer."""
        kept = self._kept.setdefault(pool, _Kept())
        async with kept.lock:
            if kept.at is None or time.monotonic() - kept.at >= FRESH_S:
                try:
                    kept.found = await read_budgets(pool, self._tenants(pool, line), self._policies)
                except QueueUnavailableError:
                    kept.found = []
                kept.at = time.monotonic()
            return kept.found

    def _tenants(self, pool: Pool, line: Line) -> list[str]:
        warned = (tenant for tenant, _budget in pool.admission.budgets.warned)
        known = dict.fromkeys((*warned, *line.quotas, *self._policies.named))
        bounded = (each for each in known if _is_bounded(self._policies.of(each, pool.name).quota))
        return list(itertools.islice(bounded, MOST_TENANTS))


def _is_bounded(quota: Quota) -> bool:
    return bool(quota.cost_per_day or quota.cost_per_month)


async def read_budgets(pool: Pool, tenants: Iterable[str], policies: TenantPolicies) -> list[api.Budget]:
    """Return the budgets of tenants in a pool.

    Raises:
        QueueUnavailableError: the ledger can't be read.
    """
    quotas = {tenant: policies.of(tenant, pool.name).quota for tenant in sorted(set(tenants))}
    bounded = {tenant: quota for tenant, quota in quotas.items() if _is_bounded(quota)}
    # The queue counts days by Redis' clock.
    now_s = pool.beat.time_ms / 1000 if pool.beat is not None else time.time()
    today = datetime.datetime.fromtimestamp(now_s, datetime.UTC).date()
    first = (today.replace(day=1) - _EPOCH).days
    found = []
    ledgers = await asyncio.gather(*(pool.ledger.usage(each, first, (today - _EPOCH).days) for each in bounded))
    for (tenant, quota), lines in zip(bounded.items(), ledgers, strict=True):
        by_day = {line.day: line.cost for line in lines}
        used = {"cost_per_day": by_day.get((today - _EPOCH).days, 0.0), "cost_per_month": sum(by_day.values())}
        found += [
            api.Budget(
                pool=pool.name,
                tenant=tenant,
                name=name,
                limit=limit,
                used=used[name],
                renews=_start(renews),
                warned=used[name] >= quota.warn_at * limit,
            )
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
