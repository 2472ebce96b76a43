"""Warnings about tenants' budgets."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.queue.entries import BudgetUse, QueueEntry, Submitted
from router.generation.choice import Choice

_LOG = logging.getLogger(__name__)
BUDGET_HEADER = "penstock-budget"
_NAMES = ("cost_per_day", "cost_per_month")
MOST_TENANTS = 1_000
"""Most budgets of which the use is remembered; those not heard of for longest are forgotten first."""


@dataclass(frozen=True, slots=True)
class _Warned:
    share: float
    until: float
    """Monotonic time at which the budget renews."""


class Budgets:
    """Use of tenants' budgets of one pool, as the queue told it when it let their requests in."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._warned: OrderedDict[tuple[str, str], _Warned] = OrderedDict()

    def note(self, entry: QueueEntry, submitted: Submitted) -> BudgetUse | None:
        """Take the answer to a request. Return the budget that its client is to be warned of; None for no warning."""
        use, now = submitted.budget, self._monotonic()
        for name in _NAMES:
            # Of several budgets the queue tells the one of which the greatest part is used.
            if not getattr(entry.quota, name) or (use is not None and use.share < entry.quota.warn_at):
                self._warned.pop((entry.tenant, name), None)
        if use is None or use.share < entry.quota.warn_at:
            return None
        key = (entry.tenant, use.budget)
        known = self._warned.get(key)
        if known is None or known.until <= now:
            fields = {"tenant": entry.tenant, "budget": use.budget}
            _LOG.warning("budget.nearly_used", extra={**fields, "used": use.used, "limit": use.limit})
        self._warned[key] = _Warned(use.share, now + use.renews_ms / 1000)
        self._warned.move_to_end(key)
        if len(self._warned) > MOST_TENANTS:
            self._warned.popitem(last=False)
        return use

    @property
    def warned(self) -> dict[tuple[str, str], float]:
        """Used part of each budget that is nearly used, by tenant and name of the budget."""
        now = self._monotonic()
        return {key: each.share for key, each in self._warned.copy().items() if each.until > now}


def warning_of(choices: Sequence[Choice]) -> tuple[tuple[str, str], ...]:
    """Return the metadata for a request's client: the budget that is nearly used, if there is one."""
    use = choices[0].wait.budget
    return () if use is None else ((BUDGET_HEADER, _text(use)),)


def _text(use: BudgetUse) -> str:
    return f"{use.budget}; used={use.used:.6g}; limit={use.limit:g}; renews={use.renews_ms // 1000}"
