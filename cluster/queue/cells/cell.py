"""What a cell is to its pool: a queue, and what only pools of several cells need."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from cluster.queue.cells.layout import CellRecord
from cluster.queue.contract import Queue


@dataclass(frozen=True, slots=True)
class CellOrders:
    """The autoscaler's orders to a pool's replicas and routers."""

    point: bytes | None
    """As in `RouterBeatReply`."""
    relief: str = "none"
    relief_ms: int = 0
    """Time until relief ends."""
    standby: bytes = b""
    """Replicas that stand by, as the store has them."""
    standby_ms: int = 0
    """Time until these orders end; 0 where none are in force."""

    @property
    def standing(self) -> CellOrders:
        """The same without times, to see whether something has changed."""
        return replace(self, relief_ms=0, standby_ms=0)


class Cell(Queue, Protocol):
    """One cell. Errors as of `Queue`."""

    async def cells(self, count: int) -> CellRecord:
        """Return the record of the pool's number of cells, which cell 0 keeps, after noting another number; 0 notes
        none.
        """
        ...

    async def read_orders(self) -> CellOrders:
        """Return the autoscaler's orders, which are written to cell 0."""
        ...

    async def copy_orders(self, orders: CellOrders) -> None:
        """Take over the orders of cell 0. Those with an end hold for one lease at most."""
        ...
