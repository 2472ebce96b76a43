"""Cancels of requests in all cells of a pool."""

from __future__ import annotations

from collections.abc import Callable

from cluster.errors import QueueUnavailableError
from cluster.queue.cells.cell import Cell, ask, first
from cluster.queue.cells.key_homes import KeyHomes
from cluster.queue.cells.layout import Layout


class CellCancels:
    """Cancels of one router. A cell that is away misses them. It has no need of them: where one choice of a request is
    found, the request's owner is told, and ends the others too.
    """

    def __init__(self, layout: Layout, cell: Callable[[int], Cell], homes: KeyHomes) -> None:
        self._layout = layout
        self._cell = cell
        self._homes = homes

    async def cancel(self, router_id: str, tenant: str, target: str, *, by_key: bool) -> str | None:
        """Cancel a request with its choices in all cells, as `Queue.cancel` does.

        Raises:
            QueueUnavailableError: it is not found, and a cell does not answer.
        """
        if by_key:
            homes = map(self._cell, self._homes.cells(tenant))
            named = first(*await ask(cell.cancel(router_id, tenant, target, by_key=True) for cell in homes))
            if named is None:
                return None
            target = named
        # The choices of a request may be in different cells. Twice: one that moves is in none for the time of one call.
        found, _ = await self._everywhere(router_id, tenant, target)
        more, away = await self._everywhere(router_id, tenant, target)
        return target if by_key else first([*found, *more], away)

    async def _everywhere(
        self, router_id: str, tenant: str, target: str
    ) -> tuple[list[str | None], QueueUnavailableError | None]:
        """Return the answers, and the error of a cell that is away."""
        return await ask(self._cell(cell).cancel(router_id, tenant, target) for cell in range(self._layout.span))
