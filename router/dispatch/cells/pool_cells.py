"""The cells of a pool in one router: their number, what they say, and the queue over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cluster.queue.cells.beats import newest
from cluster.queue.cells.cell import Cell
from cluster.queue.cells.layout import Layout
from cluster.queue.cells.queue import CellQueue
from cluster.queue.cells.seen import CellsSeen
from cluster.queue.entries import Mail
from cluster.settings import QueueSettings

LONGEST_S = 3600.0
"""Longest request with a client's key that is found in its former home after the number of cells has changed."""


class PoolCells:
    """Cells of one pool of one router."""

    def __init__(self, pool: str, cells: int, settings: QueueSettings, open_cell: Callable[[str], Cell]) -> None:
        """`open_cell` opens a cell by its name."""
        self.layout = Layout(cells)
        self.seen = CellsSeen(self.layout)
        self._pool = pool
        self._settings = settings
        self._open_cell = open_cell
        self._noted = cells > 1
        """Whether the cells of all requests are noted that came while there was one."""
        self.queue = self.open()
        """Queue over all cells, for the router's loop."""

    def change(self, cells: int, requests: Iterable[str]) -> None:
        """Take another number of cells; `requests` are those of this router."""
        self.layout.change(cells)
        self.note(requests)

    def note(self, requests: Iterable[str]) -> None:
        """Note that this router's requests are in the first cell, once there are more: while there is one nobody notes
        it, and they would be put in line elsewhere as well.
        """
        if self._noted or self.layout.span == 1:
            return
        self._noted = True
        entries = self.seen.entries
        for request_id in requests:
            if entries.get(request_id) is None:
                entries.put(request_id, 0)

    def newest(self, mail: Mail) -> Mail:
        """Return the mail of a heartbeat as it holds now, as `beats.newest` does."""
        return newest(mail, self.seen.entries)

    def open(self) -> CellQueue:
        """Open the queue over all cells for one loop."""
        settings = self._settings
        return CellQueue(
            self._pool,
            self._open_cell,
            self.seen,
            max_waiting=settings.max_waiting,
            keys_last_s=LONGEST_S + settings.attach_grace_s + settings.result_s,
        )
