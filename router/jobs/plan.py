"""Plan of a job: which of its items are still to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cluster.jobs.contract import Backlog


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Items of one block that are still to do."""

    number: int
    first: int
    """Index of the block's first item."""
    items: Sequence[int]
    """Indexes of items without a result, in order; never empty."""


def plan(backlog: Backlog) -> Iterator[BlockPlan]:
    """Yield the blocks with items to do, in order."""
    first = 0
    for number, size in enumerate(backlog.sizes):
        items = [item for item in range(first, first + size) if not is_done(backlog.done, item)]
        if items:
            yield BlockPlan(number, first, items)
        first += size


def is_done(bitmap: bytes, item: int) -> bool:
    """Return whether an item has a result. The bitmap's first bit is the highest bit of its first byte."""
    byte = item // 8
    return byte < len(bitmap) and bool(bitmap[byte] & 0x80 >> item % 8)
