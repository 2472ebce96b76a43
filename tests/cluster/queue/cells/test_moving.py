"""Which cell a replica belongs to."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from cluster.queue.cells.moving import MARGIN, CellLoad, first_cell, next_cell

SIZE = 4


def load(work: int, *members: str, former: bool = False) -> CellLoad:
    room = SIZE * len(members)
    return CellLoad(work, max(0, work - room), room, members, former)


def step(cells: Sequence[CellLoad | None], own: int, name: str, *, idle: bool = True) -> int | None:
    return next_cell(name, own, cells, size=SIZE, idle=idle)


def test_a_new_replica_joins_the_cell_with_the_fewest() -> None:
    assert 1 == first_cell("new", [load(0, "a", "b"), load(9, "c"), load(0, "d", "e")])
    assert 0 == first_cell("new", [load(0, "a", "b"), None, load(0, former=True)])


def test_replicas_that_start_together_take_different_cells() -> None:
    empty = [load(0)] * 4
    assert {0, 1, 2, 3} == {first_cell(f"r{number}", empty) for number in range(24)}


def test_an_idle_replica_goes_where_requests_wait() -> None:
    assert 1 == step([load(1, "a", "b"), load(20, "c")], 0, "a")
    assert None is step([load(1, "a", "b"), load(20, "c")], 0, "b")


def test_a_busy_replica_goes_to_a_line_from_a_cell_without_one() -> None:
    assert 1 == step([load(3, "a", "b"), load(20, "c")], 0, "a", idle=False)
    # Nobody waits there.
    assert None is step([load(1, "a", "b"), load(4, "c")], 0, "a", idle=False)


def test_a_busy_replica_leaves_a_line_for_a_much_longer_one_only() -> None:
    assert None is step([load(6, "a", "b"), load(20, "c")], 0, "a", idle=False)
    assert 1 == step([load(6, "a", "b"), load(30, "c")], 0, "a", idle=False)


def test_a_cell_gives_one_busy_replica_at_a_time() -> None:
    going = replace(load(3, "a", "b"), leaving=("x",))
    assert None is step([going, load(40, "c")], 0, "a", idle=False)
    assert 1 == step([replace(going, members=tuple("abcdefghijklmnop"), room=64), load(90, "z")], 0, "a", idle=False)


def test_as_many_cells_give_as_the_line_needs() -> None:
    """Of twelve cells with room, whichever look, few enough go that the line's cell is not the emptier one then."""
    for waiting in (6, 10, 20, 40, 80):
        cells = [load(4, f"{number}a", f"{number}b") for number in range(12)]
        cells.append(load(waiting, "line"))
        going = [number for number in range(12) if step(cells, number, f"{number}a", idle=False) == 12]
        room = SIZE * (1 + len(going))
        assert (waiting / room > 1.0) or not going
        assert waiting / (room + SIZE) <= MARGIN or len(going) == 12
    coming = [replace(each, leaving=(f"{number}x",)) for number, each in enumerate(cells[:6])] + cells[6:]
    assert not [number for number in range(12) if step([*coming[:12], load(20, "line")], number, f"{number}a") == 12]


def test_a_cell_keeps_its_last_replica_while_it_has_work() -> None:
    assert None is step([load(1, "a"), load(50, "b")], 0, "a")
    assert None is step([load(0, "a"), load(50, "b")], 0, "a")


def test_a_cell_without_replicas_gets_one_even_from_a_busy_cell() -> None:
    assert 1 == step([load(9, "a", "b"), load(0)], 0, "a", idle=False)
    assert 2 == step([load(9, "a", "b"), load(0), load(3)], 0, "a", idle=False)
    assert None is step([load(9, "a"), load(3)], 0, "a", idle=False)
    assert 1 == step([load(0, "a"), load(3)], 0, "a")


def test_a_former_cell_runs_dry_before_its_replicas_go() -> None:
    assert None is step([load(0, "a"), load(9, "b", former=True)], 1, "b", idle=False)
    assert 0 == step([load(0, "a"), load(3, "b", former=True)], 1, "b", idle=False)


def test_requests_that_are_left_in_a_former_cell_get_a_replica() -> None:
    left = load(2, former=True)
    assert 1 == step([load(5, "a", "b"), left], 0, "a", idle=False)
    assert 1 == step([load(0, "a"), left], 0, "a")
    assert None is step([load(5, "a", "b"), load(0, former=True)], 0, "a")
    assert 0 == step([load(5, "a"), load(1, "b", former=True)], 1, "b")
    assert None is step([load(5, "a"), CellLoad(3, 1, SIZE, ("b",), former=True)], 1, "b")


def test_with_fewer_replicas_than_cells_the_least_loaded_gives_way_to_a_line() -> None:
    cells = [load(3, "a"), load(2, "b"), load(1)]
    assert [None, 2] == [step(cells, 0, "a", idle=False), step(cells, 1, "b", idle=False)]
    assert None is step([load(9, "a"), load(8, "b"), load(1)], 1, "b", idle=False)
    assert None is step([load(3, "a"), load(2, "b"), load(0)], 1, "b", idle=False)
    # Another cell has one to give.
    assert None is step([load(3, "a", "c"), load(2, "b"), load(1)], 1, "b", idle=False)


def test_fewer_replicas_than_cells_serve_all_cells_in_turn() -> None:
    """Each replica finishes its cell's work, up to its size, at a time; lines come to an end in all cells."""
    work, where = [3, 3, 9], {"a": 0, "b": 1}
    for _ in range(20):
        for name in where:
            cells = [load(count, *(each for each in where if where[each] == cell)) for cell, count in enumerate(work)]
            target = step(cells, where[name], name, idle=not work[where[name]])
            where[name] = where[name] if target is None else target
        for cell in set(where.values()):
            work[cell] = max(0, work[cell] - SIZE)
    assert [0, 0, 0] == work


def test_a_replica_whose_cell_is_cut_off_goes_on_in_another_one() -> None:
    assert 1 == step([None, load(0, "b")], 0, "a")
    assert None is step([None, load(0, "b")], 0, "a", idle=False)
    assert None is step([None, None], 0, "a")


def test_replicas_settle_whatever_the_load_and_move_no_more() -> None:
    """For any load that stays, moves end, and no cell is left without a replica."""
    draw = random.Random(7)
    for _ in range(300):
        number = draw.randint(2, 6)
        work = [draw.choice((0, 1, 5, 40, 200)) for _ in range(number)]
        names = [f"r{index}" for index in range(draw.randint(number, 4 * number))]
        where = {name: draw.randrange(number) for name in names}
        busy = {name for name in names if draw.random() < 0.5}
        moved = 0
        for _ in range(20 * len(names)):
            before = dict(where)
            for name in names:
                cells = [
                    load(work[cell], *sorted(each for each in names if where[each] == cell)) for cell in range(number)
                ]
                target = step(cells, where[name], name, idle=name not in busy)
                if target is not None:
                    where[name] = target
                    moved += 1
            if before == where:
                break
        assert before == where, "it goes on for ever"
        assert set(range(number)) == set(where.values())
        assert moved <= 3 * len(names)
