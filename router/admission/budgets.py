"""Warnings about tenants' budgets."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence

from cluster.queue.entries import BudgetUse, QueueEntry, Submitted
from router.generation.choice import Choice

_LOG = logging.getLogger(__name__)
BUDGET_HEADER = "penstock-budget"
MOST_TENANTS = 1_000
"""Most budgets of which the use is remembered; those not heard of for longest are forgotten first."""


class Budgets:
    """Use of tenants' budgets of one pool, as the queue told it when it let their requests in."""

    def __init__(self) -> None:
        self._warned: OrderedDict[tuple[str, str], float] = OrderedDict()

    def note(self, entry: QueueEntry, submitted: Submitted) -> BudgetUse | None:
        """Take the answer to a request. Return the budget that its client is to be warned of; None for no warning."""
        use = submitted.budget
        if use is None:
            return None
        key = (entry.tenant, use.budget)
        if use.share < entry.quota.warn_at:
            self._warned.pop(key, None)
            return None
        if key not in self._warned:
            fields = {"tenant": entry.tenant, "budget": use.budget}
            _LOG.warning("budget.nearly_used", extra={**fields, "used": use.used, "limit": use.limit})
        self._warned[key] = use.share
        self._warned.move_to_end(key)
        if len(self._warned) > MOST_TENANTS:
            self._warned.popitem(last=False)
        return use

    @property
    def warned(self) -> dict[tuple[str, str], float]:
        """Used part of each budget that is nearly used, by tenant and name of the budget."""
        return dict(self._warned)


def warning_of(choices: Sequence[Choice]) -> tuple[tuple[str, str], ...]:
    """Return the metadata for a request's client: the budget that is nearly used, if there is one."""
    use = choices[0].wait.budget
    return () if use is None else ((BUDGET_HEADER, _text(use)),)


def _text(use: BudgetUse) -> str:
    return f"{use.budget}; used={use.used:.6g}; limit={use.limit:g}; renews={use.renews_ms // 1000}"
