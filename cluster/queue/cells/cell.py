"""What a cell is to its pool: a queue, and what only pools of several cells need."""

from __future__ import annotations

from typing import Protocol

from cluster.queue.cells.layout import CellRecord
from cluster.queue.contract import Queue


class Cell(Queue, Protocol):
    """One cell. Errors as of `Queue`."""

    async def cells(self, count: int) -> CellRecord:
        """Return the record of the pool's number of cells, which cell 0 keeps, after noting another number; 0 notes
        none.
        """
        ...

    async def copy_orders(self, point: bytes | None, relief: str) -> None:
        """Take over the autoscaler's orders from cell 0. Relief holds for one lease."""
        ...
