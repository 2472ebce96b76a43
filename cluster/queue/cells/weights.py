"""What a tenant's entries weigh in each cell, where all of them or a part must go to its home."""

from __future__ import annotations

from cluster.queue.cells.choice import bounded, home, keyed, pinned, weight_in_cell
from cluster.queue.cells.layout import Layout
from cluster.queue.entries import QueueEntry

_STEP = 1 / 64
"""How much the newest request counts for a tenant's part with keys."""
_FORGOTTEN = 0.01
"""Part with keys below which a tenant counts as one without."""
_MOST_TENANTS = 65_536


class KeyedParts:
    """Part of its tokens that each tenant sends with keys, as one router sees it. A tenant without keys takes no
    memory.
    """

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}

    def note(self, tenant: str, *, keyed: bool) -> float:
        """Count a request; return the part."""
        before = self._parts.pop(tenant, None)
        if before is None:
            if not keyed:
                return 0.0
            before = 1.0
            if len(self._parts) >= _MOST_TENANTS:
                # The one that sent nothing for the longest time.
                del self._parts[next(iter(self._parts))]
        part = before + _STEP * (keyed - before)
        if part >= _FORGOTTEN:
            self._parts[tenant] = part
        return part


class EntryWeights:
    """Weights of the entries that a router submits."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._parts = KeyedParts()

    def of(self, entry: QueueEntry, cell: int) -> float:
        """Count an entry that goes to a cell; return its weight there."""
        count, homes = self._layout.count, self._layout.homes
        if count <= 1:
            return entry.weight
        part = 1.0 if bounded(entry.quota) else self._parts.note(entry.tenant, keyed=keyed(entry))
        at_home = bool(part) and (pinned(entry) or cell == home(entry.tenant, homes))
        return weight_in_cell(entry.weight, count, part, at_home=at_home)
