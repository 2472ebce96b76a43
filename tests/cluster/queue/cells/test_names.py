"""Names of cells: today's for the first, and slots that lie evenly over a Redis Cluster for all."""

from __future__ import annotations

from itertools import pairwise

import pytest
from redis.crc import key_slot

from cluster.queue.cells.names import MOST_CELLS, cell_name, pool_of
from cluster.queue.redis.keys import pool_keys

SLOTS = 16_384


def slot(name: str) -> int:
    slots = {key_slot(key.encode()) for key in pool_keys(name)}
    assert 1 == len(slots)
    return slots.pop()


def test_the_first_cell_has_the_keys_that_the_pool_had_without_cells() -> None:
    assert pool_keys("chat") == pool_keys(cell_name("chat", 0))
    assert "penstock:1:{chat}:pool" == pool_keys(cell_name("chat", 0))[0]


@pytest.mark.parametrize("pool", ["chat", "demo", "meta-llama.70b", "a"])
@pytest.mark.parametrize("cells", [2, 4, 8, 16, 32, 64])
def test_cells_lie_evenly_over_the_slots(pool: str, cells: int) -> None:
    slots = sorted(slot(cell_name(pool, cell)) for cell in range(cells))
    gaps = [after - before for before, after in pairwise([*slots, slots[0] + SLOTS])]
    # Each lies at most a 64th of the circle after its ideal place.
    assert max(abs(gap - SLOTS / cells) for gap in gaps) <= SLOTS / MOST_CELLS


@pytest.mark.parametrize(("masters", "cells"), [(2, 2), (2, 4), (4, 4), (4, 8)])
def test_each_server_with_as_many_slots_gets_as_many_cells(masters: int, cells: int) -> None:
    for pool in ("chat", "demo", "code", "m1", "m2"):
        # Where ranges begin is no matter of ours, so a cell that is near a border may be on either side.
        first = slot(pool)
        owners = [(slot(cell_name(pool, cell)) - first) % SLOTS * masters // SLOTS for cell in range(cells)]
        assert [cells // masters] * masters == [owners.count(master) for master in range(masters)]


def test_a_cells_name_names_its_pool_and_no_pool_can_have_it() -> None:
    names = {cell_name("chat", cell) for cell in range(MOST_CELLS)}
    assert MOST_CELLS == len(names)
    assert {"chat"} == {pool_of(name) for name in names}
    assert {"chat"} == {name for name in names if "/" not in name}


@pytest.mark.parametrize("cell", [-1, MOST_CELLS])
def test_a_cell_that_cannot_be_is_refused(cell: int) -> None:
    with pytest.raises(ValueError, match="a cell must be from 0 to 63"):
        cell_name("chat", cell)
