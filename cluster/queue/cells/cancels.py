"""Cancels of requests in all cells of a pool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from cluster.queue.cells.cell import Cell, ask, first, search
from cluster.queue.cells.key_homes import KeyHomes
from cluster.queue.cells.seen import CellsSeen


class CellCancels:
    """Cancels of one router. A cell that is away misses them. It has no need of them: where one choice of a request is
    found, the request's owner is told, and ends the others too.
    """

    def __init__(self, seen: CellsSeen, cell: Callable[[int], Cell], homes: KeyHomes) -> None:
        self._seen = seen
        self._cell = cell
        self._homes = homes

    async def cancel(self, router_id: str, tenant: str, target: str, *, by_key: bool) -> str | None:
        """Cancel a request with its choices in all cells, as `Queue.cancel` does.

        Raises:
            QueueUnavailableError: it is not found, and a cell does not answer.
        """

        def call(cell: int) -> Awaitable[str | None]:
            return self._cell(cell).cancel(router_id, tenant, target, by_key=by_key)

        away, named = self._seen.away, None
        if by_key:
            named = await search(self._homes.cells(tenant), away, call)
            if named is None:
                return None
            target, by_key = named, False
        cells = range(self._seen.layout.span)
        near = [cell for cell in cells if cell not in away]
        # The choices of a request may be in different cells. Twice: one that moves is in none for the time of one call.
        found, _ = await ask(map(call, near))
        more, failure = await ask(map(call, near))
        answer = first([named, *found, *more], None)
        if answer is None:
            rest, error = await ask(call(cell) for cell in cells if cell in away)
            answer = first(rest, error or failure)
        return answer
