"""What a cell is to its pool: a queue, and what only pools of several cells need."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from cluster.errors import QueueUnavailableError
from cluster.queue.cells.layout import CellRecord, Layout
from cluster.queue.cells.merge import merge_known
from cluster.queue.contract import Queue
from cluster.queue.entries import Mail
from cluster.queue.heartbeats import PoolView

Answer = TypeVar("Answer")


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

    async def cells(self, count: int, most: int = 0) -> CellRecord:
        """Return the record of the pool's number of cells, which cell 0 keeps, after noting another number; 0 notes
        none. With `most`, the most cells that the caller has read of, it is noted only where the store lost its record.
        """
        ...

    async def take_out(self, router_id: str, request_id: str) -> Mail | None:
        """Take a router's entry out of the line, so that it can go to another cell. Return the mail that this causes;
        None where the cell has no such entry, another router has it, it has a slot, or an order ends it.
        """
        ...

    async def read_orders(self) -> CellOrders:
        """Return the autoscaler's orders, which are written to cell 0."""
        ...

    async def copy_orders(self, orders: CellOrders) -> None:
        """Take over the orders of cell 0. Those with an end hold for one lease at most."""
        ...


async def ask(calls: Iterable[Awaitable[Answer]]) -> tuple[list[Answer], QueueUnavailableError | None]:
    """Return the answers of the cells that answer, in their order, and the error of one that does not."""
    found, away = [], None
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, QueueUnavailableError):
            away = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found.append(answer)
    return found, away


async def ask_each(cells: Iterable[int], call: Callable[[int], Awaitable[Answer]]) -> Mapping[int, Answer]:
    """Return the answers of the cells that answer, by cell.

    Raises:
        QueueUnavailableError: none of them answers.
    """

    async def one(cell: int) -> tuple[int, Answer]:
        return cell, await call(cell)

    found, away = await ask(one(cell) for cell in cells)
    if not found and away is not None:
        raise away
    return dict(found)


def first(found: Iterable[Answer | None], away: QueueUnavailableError | None) -> Answer | None:
    """Return the first answer that is one. None where there is none and all cells have answered.

    Raises:
        QueueUnavailableError: there is none, and a cell does not answer.
    """
    answer = next((each for each in found if each is not None), None)
    if answer is None and away is not None:
        raise away
    return answer


async def search(
    cells: Iterable[int], away: Container[int], call: Callable[[int], Awaitable[Answer | None]]
) -> Answer | None:
    """Return the first answer that is one, for what only one cell has. The cells that are `away` may take the time of a
    call to say nothing, so they are asked only where the others do not have it.

    Raises:
        QueueUnavailableError: no cell that answers has it, and one does not answer.
    """
    cells = list(cells)
    found, failure = await ask(call(cell) for cell in cells if cell not in away)
    if (answer := first(found, None)) is not None:
        return answer
    more, error = await ask(call(cell) for cell in cells if cell in away)
    return first(more, error or failure)


async def read_layout(first: Cell, layout: Layout) -> None:
    """Read the record of the number of cells, and note there what is news."""
    question = layout.question()
    record = await first.cells(*question)
    # Unless this process was told another number meanwhile.
    if question == layout.question():
        layout.heard(record)


class CellViews:
    """Views of a pool of which cells may be away: they count as they were seen last."""

    def __init__(self, cell: Callable[[int], Cell]) -> None:
        self._cell = cell
        self._known: dict[int, PoolView] = {}

    async def look(self, cells: Collection[int]) -> PoolView:
        """Look at all cells.

        Raises:
            QueueUnavailableError: none of them answers.
        """
        found = await ask_each(cells, lambda number: self._cell(number).observe())
        self._known |= found
        return merge_known(found, self._known, cells)
