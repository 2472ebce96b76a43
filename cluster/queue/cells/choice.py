"""Which cell a request goes to, and which waiting requests go to another one. Pure: no clock, no store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from cluster.queue.entries import QueueEntry, Quota

PATIENCE = 0.25
"""How much longer than elsewhere, in parts of a full batch, a request may wait for a replica that has its prompt's
beginning."""
LEAST_ELSEWHERE = 0.25
"""Least part of its weight that a tenant has outside of its home: few requests there must not count as very many."""
MOVES = 8
"""Most waiting requests that a router moves out of one cell at a heartbeat."""


class CellView(NamedTuple):
    """One cell as a router sees it. Two or three are made for each request, so it is no dataclass, which is four times
    as slow to make.
    """

    cell: int
    waiting: int
    running: int
    room: int
    """Sequences that its replicas take at a time."""
    replicas: frozenset[str] = frozenset()
    """Replicas that take work."""
    doubt: float = 0.0
    """How much its work per room may have changed since it was heard of: what other routers have it do in the time
    between two heartbeats."""

    @property
    def pressure(self) -> float:
        """Work per room: an estimate of the wait in units that all cells of a pool share. Above 1 there is a line."""
        work = self.waiting + self.running
        return work / self.room if self.room else float("inf")


@lru_cache(maxsize=65_536)
def home(tenant: str, cells: int) -> int:
    """Return the cell in which a tenant has its keys and its quota, by rendezvous hashing: another number of cells
    moves the fewest tenants.
    """
    if cells <= 1:
        return 0
    name = tenant.encode()
    return max(range(cells), key=lambda cell: hashlib.blake2b(name, digest_size=8, key=b"cell %d" % cell).digest())


def pinned(entry: QueueEntry) -> bool:
    """Return whether an entry must go to its tenant's home: elsewhere its key or its quota would not be known."""
    return keyed(entry) or bounded(entry.quota)


def keyed(entry: QueueEntry) -> bool:
    """Return whether an entry's request has a client key. Its first choice alone carries the key, and all of them the
    digest: the key is kept while the cell that has it sees one of them.
    """
    return bool(entry.client_key or entry.digest)


def bounded(quota: Quota) -> bool:
    """Return whether a quota counts over all requests of its tenant. How many wait is bounded cell by cell."""
    return bool(
        quota.tokens_per_minute
        or quota.requests_per_minute
        or quota.concurrency
        or quota.cost_per_day
        or quota.cost_per_month
    )


def choose(one: CellView, other: CellView, wanted: CellView | None, draw: float) -> int:
    """Return the cell for a request that is free to go anywhere.

    Many routers see the same cell with little work and would all send it theirs until the next heartbeat. So a
    difference of less than what a heartbeat brings is no certainty: it makes the cell with less work likelier, and the
    likelier the larger it is. Two cells that look the same get requests in proportion to their room.

    Args:
        one: a cell drawn by chance.
        other: a second one. To compare two is nearly as good as to know the best.
        wanted: the cell of the replica that the request prefers most; None where there is none.
        draw: a number drawn from 0 to 1, without 1.
    """
    best, rest = (other, one) if (other.pressure, other.waiting) < (one.pressure, one.waiting) else (one, other)
    if wanted is not None and _near(wanted, best):
        return wanted.cell
    return best.cell if draw < _certainty(best, rest) else rest.cell


def _certainty(best: CellView, rest: CellView) -> float:
    """Return how sure it is that a request does better in the first of two cells."""
    doubt = max(best.doubt, rest.doubt)
    if not doubt or not rest.room or (gap := rest.pressure - best.pressure) >= doubt:
        return 1.0
    even = best.room / (best.room + rest.room)
    return even + (1.0 - even) * gap / doubt


def weight_in_cell(weight: float, cells: int, part: float, *, at_home: bool) -> float:
    """Return the weight that an entry has in its cell, so that those of all cells together are as many times the
    tenant's weight as there are cells. A tenant whose requests all go to one cell competes there with tenants that are
    served in all of them, and counts as much there as they do in all cells together. One that sends a part of its
    requests to its home counts more there, and less elsewhere.

    Args:
        weight: the tenant's weight.
        cells: number of cells.
        part: part of the tenant's requests that must go to its home, from 0 to 1.
        at_home: whether the cell is its home.
    """
    return weight * (1 + (cells - 1) * part) if at_home else weight * max(LEAST_ELSEWHERE, 1 - part)


def _near(wanted: CellView, best: CellView) -> bool:
    """Return whether a request waits nowhere much shorter than in the cell that it prefers."""
    no_wait = not wanted.waiting and wanted.pressure < 1
    return no_wait or wanted.pressure <= best.pressure + PATIENCE


@dataclass(frozen=True, slots=True)
class CellMove:
    """Waiting entries that go from one cell to another."""

    source: int
    target: int
    entries: int
    """How many."""


def moves(cells: Sequence[CellView], own: Mapping[int, int]) -> list[CellMove]:
    """Return which waiting entries a router moves.

    Only a cell with a line gives, and only one without a line and with room takes. So an entry that moves is granted at
    once, and none moves twice.

    Args:
        cells: cells that answer.
        own: waiting entries of this router that are free to go, by cell.
    """
    takers = [[each.room - each.running, each.cell] for each in cells if not each.waiting and each.room > each.running]
    givers = sorted((each for each in cells if each.waiting and own.get(each.cell)), key=lambda each: -each.pressure)
    found = []
    for giver in givers:
        takers.sort(reverse=True)
        if not takers or not takers[0][0]:
            break
        # Other routers see the same room: a part of it is this one's.
        number = min(MOVES, own[giver.cell], max(1, takers[0][0] // 2))
        takers[0][0] -= number
        found.append(CellMove(giver.cell, takers[0][1], number))
    return found
