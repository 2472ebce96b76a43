"""Where requests go among cells, and which move."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from cluster.queue.cells.choice import MOVES, CellMove, CellView, choose, home, moves, pinned
from cluster.queue.cells.layout import Layout
from cluster.queue.cells.seen import CellsSeen
from cluster.queue.entries import Quota
from tests.cluster.queue.backends import entry
from tests.cluster.queue.cells.test_merge import record, reply

EMPTY = CellView(0, waiting=0, running=0, room=8, replicas=frozenset({"r0"}))


def view(cell: int, *, waiting: int = 0, running: int = 0, room: int = 8) -> CellView:
    return CellView(cell, waiting, running, room, frozenset({f"r{cell}"}))


def test_another_number_of_cells_moves_the_fewest_tenants() -> None:
    tenants = [f"tenant-{number}" for number in range(2000)]
    before, after = [home(name, 4) for name in tenants], [home(name, 5) for name in tenants]
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {4} == {new for _, new in moved}
    assert 300 < len(moved) < 500
    assert all(400 < count < 600 for count in Counter(before).values())


def test_one_cell_is_the_home_of_all() -> None:
    assert {0} == {home(f"tenant-{number}", 1) for number in range(50)}


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (Quota(), False),
        (Quota(max_waiting=5), False),
        (Quota(tokens_per_minute=1), True),
        (Quota(requests_per_minute=1), True),
        (Quota(concurrency=1), True),
        (Quota(cost_per_day=0.1), True),
        (Quota(cost_per_month=0.1), True),
    ],
)
def test_what_counts_over_all_requests_of_a_tenant_pins_them(quota: Quota, expected: bool) -> None:
    assert expected == pinned(entry("q", quota=quota))


def test_a_key_pins_its_request() -> None:
    assert pinned(entry("q", client_key="key"))


def test_the_shorter_line_of_two_is_taken() -> None:
    long, short = view(0, waiting=3, running=8), view(1, waiting=1, running=8)
    assert [1, 1] == [choose(long, short, None), choose(short, long, None)]


def test_the_replica_that_has_the_prompt_is_worth_a_bounded_wait() -> None:
    busy, idle = view(0, running=7), view(1)
    assert 0 == choose(busy, idle, busy)
    full, other = view(0, waiting=4, running=8), view(1, running=8)
    assert 1 == choose(full, other, full)
    nearly = view(0, waiting=1, running=8)
    assert 0 == choose(nearly, other, nearly)


def drawn(seen: CellsSeen, *preferred: str) -> list[tuple[int, int, int | None]]:
    """Draw many times."""
    source, found = random.Random(5), []
    for _ in range(200):
        one = seen.draw(preferred, source)
        assert one is not None
        found.append((one[0].cell, one[1].cell, None if one[2] is None else one[2].cell))
    return found


def test_two_different_cells_are_drawn_of_those_that_have_replicas() -> None:
    seen = CellsSeen(Layout(4))
    for cell in range(4):
        seen.heard(cell, reply(replicas=(record(f"r{cell}"),) if cell != 2 else ()))
    pairs = Counter((one, other) for one, other, _ in drawn(seen))
    assert {(a, b) for a in (0, 1, 3) for b in (0, 1, 3) if a != b} == set(pairs)
    assert min(pairs.values()) > 15
    assert {3} == {wanted for *_, wanted in drawn(seen, "r3", "r0")}
    assert {None} == {wanted for *_, wanted in drawn(seen, "gone")}
    seen.lost(frozenset({0, 1}))
    assert {(3, 3, None)} == set(drawn(seen, "r1"))


def test_without_replicas_all_cells_are_drawn_and_without_an_answer_none() -> None:
    seen = CellsSeen(Layout(2))
    assert seen.draw((), random.Random(1)) is None
    for cell in range(2):
        seen.heard(cell, reply())
    assert {(0, 1, None), (1, 0, None)} == set(drawn(seen))
    seen.layout.change(1)
    assert {(0, 0, None)} == set(drawn(seen))


def test_a_cell_with_room_and_no_line_takes_from_one_with_a_line() -> None:
    cells = [view(0, waiting=20, running=8), view(1, running=2)]
    assert [CellMove(0, 1, 3)] == moves(cells, {0: 20})


def test_what_moves_at_once_is_bounded() -> None:
    cells = [view(0, waiting=500, running=8), view(1, room=500)]
    assert [CellMove(0, 1, MOVES)] == moves(cells, {0: 400})


def test_nothing_moves_into_a_line_or_out_of_none() -> None:
    assert [] == moves([view(0, waiting=20, running=8), view(1, waiting=1, running=2)], {0: 20, 1: 1})
    assert [] == moves([view(0, running=8), view(1)], {})
    assert [] == moves([view(0, waiting=2, running=8), view(1, running=8)], {0: 2})


def test_two_full_cells_share_what_a_third_has_room_for() -> None:
    cells = [view(0, waiting=9, running=8), view(1, waiting=5, running=8), view(2, running=4)]
    found = moves(cells, {0: 9, 1: 5})
    assert [CellMove(0, 2, 2), CellMove(1, 2, 1)] == found
    assert sum(each.entries for each in found) <= 4


def test_no_room_is_the_longest_wait() -> None:
    assert replace(EMPTY, room=0).pressure > view(1, waiting=10_000).pressure
