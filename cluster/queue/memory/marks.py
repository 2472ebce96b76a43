"""Marks on contents that kill engines; mirrors redis/lua/quarantine.lua."""

from __future__ import annotations

from cluster.queue.entries import Mark, Marks
from cluster.queue.memory.state import MARKS, PoolState


def add_mark(pool: PoolState, mark: Mark) -> None:
    """Mark a content for all routers. If there are too many marks, those that end first make room."""
    kept = {c: (i, until) for c, (i, until) in pool.quarantined.items() if until > pool.now and c != mark.content}
    for content in sorted(kept, key=lambda content: kept[content][1])[: max(0, len(kept) - MARKS + 1)]:
        del kept[content]
    pool.quarantined = {**kept, mark.content: (mark.incident, pool.now + mark.left_ms)}
    pool.marks += 1


def marks(pool: PoolState) -> Marks:
    """Return the marks that have not ended."""
    found = sorted(pool.quarantined.items())
    return Marks(pool.marks, tuple(Mark(c, i, until - pool.now) for c, (i, until) in found if until > pool.now))
