"""Cells that may have a client's key."""

from __future__ import annotations

from cluster.queue.cells.choice import home
from cluster.queue.cells.seen import CellsSeen


class KeyHomes:
    """Homes of keys, also while the number of cells changes."""

    def __init__(self, seen: CellsSeen, last_s: float) -> None:
        """`last_s`: how long keys last, in seconds."""
        self._seen = seen
        self._last_s = last_s

    def former(self, tenant: str) -> list[int]:
        """Return the cells that may have keys of a tenant besides its home, while keys last that are older than the
        number of cells.
        """
        layout = self._seen.layout
        if layout.changed_s() > self._last_s:
            return []
        return [cell for cell in range(layout.span) if cell != home(tenant, layout.homes)]

    def cells(self, tenant: str, request_id: str = "") -> list[int]:
        """Return all cells that may have keys of a tenant; only that of the request, where it is known."""
        cell = self._seen.entries.get(request_id)
        return [home(tenant, self._seen.layout.homes), *self.former(tenant)] if cell is None else [cell]
