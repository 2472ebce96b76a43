"""Names of a pool's cells. A cell's name stands for the pool's in all its keys.

Cell 0 has the pool's own name, so a pool of one cell is what it was before there were cells. The names of the others
are chosen so that the cells lie evenly over the slots of a Redis Cluster, however many there are: servers usually own
ranges of slots, so each gets its part of the cells.
"""

from __future__ import annotations

from functools import cache

from redis.crc import key_slot

from cluster.redis.keys import pool_key

MOST_CELLS = 64
"""Most cells of a pool."""
_MARK = "/"
"""Part of no pool's name, so that no pool can have a cell's."""
_SLOTS = 16_384
_NEAR = _SLOTS // MOST_CELLS
"""How far after its ideal slot a cell's slot may be."""


@cache
def cell_name(pool: str, cell: int) -> str:
    """Return the name of a cell.

    Raises:
        ValueError: there is no such cell.
    """
    if not 0 <= cell < MOST_CELLS:
        raise ValueError(f"a cell must be from 0 to {MOST_CELLS - 1}, got {cell}")
    if cell == 0:
        return pool
    ideal = (_slot(pool) + _spread(cell)) % _SLOTS
    names = (f"{pool}{_MARK}{cell}.{number}" for number in range(_SLOTS))
    near = (name for name in names if (_slot(name) - ideal) % _SLOTS < _NEAR)
    # One of 64 names is near enough, so that a name without an end is out of reach.
    return next(near, f"{pool}{_MARK}{cell}")


def pool_of(name: str) -> str:
    """Return the pool of a cell's name."""
    return name.partition(_MARK)[0]


def _slot(name: str) -> int:
    return key_slot(pool_key(name, "pool").encode())


def _spread(cell: int) -> int:
    """Return the distance of a cell's slot from that of cell 0: the bits of its number in reverse, so that the first
    two cells halve the circle, the first four quarter it, and so on.
    """
    distance, part = 0, _SLOTS
    while cell:
        part //= 2
        distance += part * (cell & 1)
        cell >>= 1
    return distance
