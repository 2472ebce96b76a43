"""Cancels of requests in all cells of a pool. A cell that is away is told when it is back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from cluster.errors import QueueUnavailableError
from cluster.queue.cells.cell import Cell, ask, first
from cluster.queue.cells.key_homes import KeyHomes
from cluster.queue.cells.seen import CellsSeen

MOST_OWED = 4_096
"""Most cancels that are kept for cells that are away; the oldest go first."""


class CellCancels:
    """Cancels of one router."""

    def __init__(self, seen: CellsSeen, cell: Callable[[int], Cell], homes: KeyHomes) -> None:
        self._seen = seen
        self._cell = cell
        self._homes = homes
        self._owed: OrderedDict[tuple[int, str, str], None] = OrderedDict()
        """Cell, tenant and request of cancels that a cell has not heard."""

    @property
    def due(self) -> bool:
        """Whether a cell that answers is to be told something."""
        return any(cell not in self._seen.away for cell, _, _ in self._owed)

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
        found, _, _ = await self._everywhere(router_id, tenant, target)
        more, away, missed = await self._everywhere(router_id, tenant, target)
        answer = target if by_key else first([*found, *more], away)
        if answer is not None:
            # Where it is not found the caller is told, and tries again.
            self._owed.update(dict.fromkeys((cell, tenant, answer) for cell in missed))
            while len(self._owed) > MOST_OWED:
                self._owed.popitem(last=False)
        return answer

    async def _everywhere(
        self, router_id: str, tenant: str, target: str
    ) -> tuple[list[str | None], QueueUnavailableError | None, set[int]]:
        """Return the answers, the error of a cell that is away, and all cells that are."""
        missed = set(range(self._seen.layout.span))

        async def one(cell: int) -> str | None:
            found = await self._cell(cell).cancel(router_id, tenant, target)
            missed.discard(cell)
            return found

        answers, away = await ask(map(one, sorted(missed)))
        return answers, away, missed

    async def again(self, router_id: str) -> None:
        """Tell cells that are back what they have not heard."""
        for cell, tenant, target in list(self._owed):
            if cell in self._seen.away:
                continue
            try:
                await self._cell(cell).cancel(router_id, tenant, target)
            except QueueUnavailableError:
                continue
            self._owed.pop((cell, tenant, target), None)
