"""Budgets of tenants over several cells.

A tenant with a budget has all its requests in its home. But before it had one its requests went anywhere, and another
number of cells may have moved its home. What was charged in other cells is read once a minute, and the home hears of
what is left. What is in flight elsewhere at such a change is found within a minute.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cluster.errors import QueueUnavailableError, QuotaExceededError
from cluster.queue.cells.cell import Cell
from cluster.queue.cells.seen import CellsSeen
from cluster.queue.entries import BudgetUse, QueueEntry, Quota, Submitted, UsageLine

FRESH_S = 60.0
"""How long a reading of the other cells' ledgers counts, in seconds."""
_EPOCH = datetime.date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Charges of a tenant in cells that are not its home."""

    cost_per_day: float = 0.0
    """Those of today."""
    cost_per_month: float = 0.0
    """Those of this month, today included."""

    def left(self, quota: Quota) -> Quota:
        """Return a quota with what these charges leave of its budgets."""
        names = [name for name in ("cost_per_day", "cost_per_month") if getattr(quota, name) and getattr(self, name)]
        if not names:
            return quota
        return replace(quota, **{name: getattr(quota, name) - getattr(self, name) for name in names})

    def whole(self, submitted: Submitted) -> Submitted:
        """Return an answer with the whole of a budget that the home knows a part of."""
        budget = submitted.budget
        return submitted if budget is None else replace(submitted, budget=self._use(budget))

    def _use(self, use: BudgetUse) -> BudgetUse:
        more: float = getattr(self, use.budget)
        return replace(use, used=use.used + more, limit=use.limit + more)

    def refused(self, error: QuotaExceededError) -> QuotaExceededError:
        """Return a refusal with the whole of a budget."""
        if error.used is None:
            return error
        more: float = getattr(self, error.quota)
        limit, used = error.limit + more, error.used + more
        return QuotaExceededError(error.pool, error.tenant, error.quota, limit, error.retry_after_s, used=used)


NOTHING = Elsewhere()


class CellBudgets:
    """Charges of tenants with a budget, as one router knows them."""

    def __init__(self, pool: str, seen: CellsSeen, cell: Callable[[int], Cell]) -> None:
        self._pool = pool
        self._seen = seen
        self._cell = cell
        self._read_last: dict[tuple[str, int], Sequence[UsageLine]] = {}
        """Lines by tenant and cell, as last read."""
        self._known: dict[str, tuple[float, int, int, Elsewhere]] = {}
        """Charges by tenant, with the time of the reading, the tenant's home and the day."""

    async def elsewhere(self, entry: QueueEntry, home: int) -> Elsewhere:
        """Return what an entry's tenant was charged outside its home.

        Raises:
            QuotaExceededError: that alone uses a budget up.
            QueueUnavailableError: a cell does not answer, and has not been read before.
        """
        quota = entry.quota
        if not (quota.cost_per_day or quota.cost_per_month) or not entry.choices:
            return NOTHING
        today = self._seen.time_ms // 86_400_000
        known = self._known.get(entry.tenant)
        if known is None or known[1:3] != (home, today) or time.monotonic() - known[0] > FRESH_S:
            found = await self._read(entry.tenant, home, today)
            known = self._known[entry.tenant] = time.monotonic(), home, today, found
        spent = known[3]
        date = _EPOCH + datetime.timedelta(days=today)
        ends = {"cost_per_day": date + datetime.timedelta(days=1), "cost_per_month": _next_month(date)}
        for name, until in ends.items():
            limit, used = getattr(quota, name), getattr(spent, name)
            if limit and used >= limit:
                left_s = (until - _EPOCH).days * 86_400 - self._seen.time_ms / 1000
                raise QuotaExceededError(self._pool, entry.tenant, name, limit, left_s, used=used)
        return spent

    async def _read(self, tenant: str, home: int, today: int) -> Elsewhere:
        first = today - (_EPOCH + datetime.timedelta(days=today)).day + 1
        others = [cell for cell in range(self._seen.layout.span) if cell != home]
        found = await asyncio.gather(*(self._lines(tenant, cell, first, today) for cell in others))
        lines = [line for part in found for line in part if line.day >= first]
        return Elsewhere(sum(line.cost for line in lines if line.day == today), sum(line.cost for line in lines))

    async def _lines(self, tenant: str, cell: int, first: int, today: int) -> Sequence[UsageLine]:
        """Read a tenant's lines in a cell. Of one that is away the last reading counts."""
        last = self._read_last.get((tenant, cell))
        if last is not None and cell in self._seen.away:
            return last
        try:
            lines = self._read_last[tenant, cell] = await self._cell(cell).usage(tenant, first, today)
        except QueueUnavailableError:
            if last is None:
                raise
            return last
        return lines


def _next_month(day: datetime.date) -> datetime.date:
    return (day.replace(day=1) + datetime.timedelta(days=31)).replace(day=1)
