"""Orders to stand by for the replicas of a pool that are in other cells than the first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from cluster.autoscaler.store import ControlStore
from cluster.errors import QueueUnavailableError
from cluster.queue.cells.names import cell_name

_LOG = logging.getLogger(__name__)


class CellStandbys:
    """A leader's way to the other cells of its pool. The first has the orders with the decision."""

    def __init__(self, pool: str, open_store: Callable[[str], ControlStore]) -> None:
        """`open_store` opens the store of a cell by its name."""
        self._pool = pool
        self._open = open_store
        self._stores: dict[int, ControlStore] = {}
        self._sleeping = False
        """Whether the last orders named anybody."""

    async def give(self, cells: int, fence: int, names: Sequence[str], seconds: float) -> None:
        """Give orders that hold for so long. A cell that does not answer wakes its replicas by itself."""
        if cells > 1 and (names or self._sleeping):
            await asyncio.gather(*(self._give(cell, fence, names, seconds) for cell in range(1, cells)))
        self._sleeping = bool(names)

    async def _give(self, cell: int, fence: int, names: Sequence[str], seconds: float) -> None:
        if cell not in self._stores:
            self._stores[cell] = self._open(cell_name(self._pool, cell))
        try:
            await self._stores[cell].hold(fence, names, seconds)
        except QueueUnavailableError as error:
            _LOG.warning("autoscaler.cell_not_told", extra={"pool": self._pool, "cell": cell, "error": str(error)})

    async def close(self) -> None:
        """Close all connections."""
        stores, self._stores = list(self._stores.values()), {}
        await asyncio.gather(*(store.close() for store in stores))
