"""Which items of a job are to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cluster.jobs.contract import Backlog


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Names what to do of one block."""

    number: int
    first: int
    """Index of the block's first item."""
    items: Sequence[int]
    """Indexes of items without a result, in order; never empty."""


def plan(backlog: Backlog) -> Iterator[BlockPlan]:
    """Give the blocks that have something to do, in order."""
    first = 0
    for number, size in enumerate(backlog.sizes):
        items = [item for item in range(first, first + size) if not is_done(backlog.done, item)]
        if items:
            yield BlockPlan(number, first, items)
        first += size


def is_done(bitmap: bytes, item: int) -> bool:
    """Look an item up."""
    byte = item // 8
    return byte < len(bitmap) and bool(bitmap[byte] & 0x80 >> item % 8)
