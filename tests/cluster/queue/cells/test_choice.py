"""Where requests go among cells, and which move."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from cluster.queue.cells.choice import MOVES, CellMove, CellView, choose, home, moves, pinned, weight_in_cell
from cluster.queue.cells.layout import Layout
from cluster.queue.cells.seen import CellsSeen
from cluster.queue.cells.weights import KeyedParts
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
    assert pinned(entry("q/0", client_key="key", digest="d"))
    # Only the first choice carries the key.
    assert pinned(entry("q/1", digest="d"))


def test_the_shorter_line_of_two_is_taken() -> None:
    long, short = view(0, waiting=3, running=8), view(1, waiting=1, running=8)
    assert [1, 1] == [choose(long, short, None, 0.99), choose(short, long, None, 0.99)]


def test_a_difference_within_what_a_heartbeat_brings_is_a_likelihood() -> None:
    """The lesser of two gets all beyond the doubt, half at no difference, and more the larger it is."""
    busy = view(0, running=40, room=100)._replace(doubt=0.2)
    parts = []
    for running in (40, 35, 30, 25, 20):
        less = view(1, running=running, room=100)
        parts.append(sum(choose(less, busy, None, draw / 100) for draw in range(100)) / 100)
    assert [0.5, 0.62, 0.75, 0.87, 1.0] == pytest.approx(parts, abs=0.011)


def test_two_cells_that_look_the_same_get_requests_by_their_room() -> None:
    large, small = (view(cell, room=room)._replace(doubt=0.5) for cell, room in ((0, 30), (1, 10)))
    assert 25 == sum(choose(large, small, None, draw / 100) for draw in range(100))


def test_the_doubt_is_what_other_routers_begin_between_two_answers() -> None:
    seen = CellsSeen(Layout(1))
    known = {"replicas": (record("r0"),), "routers": ("A", "B", "C", "D")}
    seen.heard(0, reply(granted=(10, 0, 0), **known))
    assert 0.0 == seen.views()[0].doubt
    seen.heard(0, reply(granted=(18, 5, 3), **known))
    assert 16 * 0.75 / 4 == seen.views()[0].doubt
    seen.heard(0, reply(granted=(19, 5, 3), replicas=(record("r0"),), routers=("A",)))
    assert 0.0 == seen.views()[0].doubt
    # A store that was emptied counts anew.
    seen.heard(0, reply(**known))
    assert 0.0 == seen.views()[0].doubt


def test_a_heartbeat_without_news_of_replicas_keeps_them_and_brings_the_rest() -> None:
    seen = CellsSeen(Layout(1))
    seen.heard(0, reply(replicas=(record("r0"), record("r1")), running=1, routers=("A", "B")))
    before = seen.views()[0]
    seen.heard(0, replace(reply(running=5, granted=(4, 0, 0), routers=("A", "B")), replicas=None))
    doubt = 4 * 0.5 / before.room
    assert before._replace(running=5, doubt=doubt) == seen.views()[0]
    seen.sent(0)
    assert before._replace(running=6, doubt=doubt) == seen.views()[0]
    seen.heard(0, reply(replicas=(record("r2"),), routers=("A", "B")))
    assert (before.room // 2, frozenset({"r2"})) == (seen.views()[0].room, seen.views()[0].replicas)


def flow_of(routers: int, *, sure: bool) -> float:
    """Let routers with old news place a steady flow on cells that empty steadily; return the mean spread of their
    pressures. A router hears all cells once in a second, at its own moment.
    """
    source, room, cells, flow = random.Random(3), 100, 8, 1200
    running, news = [50.0] * cells, [[50.0] * cells for _ in range(routers)]
    spreads = []
    for step in range(6 * flow):
        router = source.randrange(routers)
        if step % (flow // routers) == 0:
            news[(step // (flow // routers)) % routers] = list(running)
        first, second = source.sample(range(cells), 2)
        doubt = 0.0 if sure else flow / cells / room
        views = [
            view(cell, running=round(news[router][cell]), room=room)._replace(doubt=doubt) for cell in (first, second)
        ]
        chosen = choose(views[0], views[1], None, source.random())
        running[chosen] += 1
        running = [each * (1 - 3 / flow) for each in running]
        if step > 2 * flow:
            spreads.append(max(running) - min(running))
    return sum(spreads) / len(spreads) / room


@pytest.mark.parametrize("routers", [20, 100])
def test_routers_with_old_news_spread_a_flow_more_evenly_with_doubt(routers: int) -> None:
    assert flow_of(routers, sure=False) < 0.75 * flow_of(routers, sure=True)


def test_a_pinned_entry_counts_in_its_home_as_it_would_in_all_cells_together() -> None:
    assert 6.0 == weight_in_cell(1.5, 4, 1.0, at_home=True)
    assert 1.5 == weight_in_cell(1.5, 4, 0.0, at_home=False)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.5, 0.75])
def test_a_tenant_with_some_keys_has_its_weight_in_all_cells_together(part: float) -> None:
    elsewhere = 3 * weight_in_cell(2.0, 4, part, at_home=False)
    assert 4 * 2.0 == pytest.approx(elsewhere + weight_in_cell(2.0, 4, part, at_home=True))


def test_the_part_with_keys_follows_what_a_tenant_sends() -> None:
    parts = KeyedParts()
    assert 0.0 == parts.note("free", keyed=False)
    assert [1.0, 1.0] == [parts.note("keyed", keyed=True) for _ in range(2)]
    mixed = [parts.note("mixed", keyed=number % 2 == 0) for number in range(500)][-1]
    assert 0.5 == pytest.approx(mixed, abs=0.02)
    assert {"keyed", "mixed"} == set(parts._parts)
    for _ in range(500):
        parts.note("mixed", keyed=False)
    assert {"keyed"} == set(parts._parts)


def test_a_preferred_replica_is_looked_for_where_it_was_heard_of_last() -> None:
    seen = CellsSeen(Layout(2))

    def preferred(name: str) -> set[int | None]:
        return {wanted for _, _, wanted in drawn(seen, name)}

    seen.heard(0, reply(replicas=(record("r0"), record("goes"))))
    seen.heard(1, reply(replicas=(record("r1"),)))
    assert [{0}, {0}, {1}, {None}] == [preferred(name) for name in ("r0", "goes", "r1", "none")]
    seen.heard(0, reply(replicas=None))
    assert {0} == preferred("goes")
    seen.heard(0, reply(replicas=(record("r0"),)))
    assert {None} == preferred("goes")
    seen.heard(1, reply(replicas=(record("r1"), record("goes"))))
    assert {1} == preferred("goes")
    seen.lost(frozenset({1}))
    assert [{0}, {None}] == [preferred(name) for name in ("r0", "goes")]
    seen.lost(frozenset())
    assert {1} == preferred("goes")


def test_the_replicas_of_a_pool_are_not_gathered_again_without_news() -> None:
    seen = CellsSeen(Layout(2))
    for cell in (0, 1):
        seen.heard(cell, reply(replicas=(record(f"r{cell}"),)))
    drawn(seen)
    members = seen._members[1]
    seen.heard(0, reply(replicas=None, running=3))
    seen.heard(1, reply(replicas=(record("r1"),)))
    drawn(seen)
    assert members is seen._members[1]


def test_the_replica_that_has_the_prompt_is_worth_a_bounded_wait() -> None:
    busy, idle = view(0, running=7), view(1)
    assert 0 == choose(busy, idle, busy, 0.99)
    full, other = view(0, waiting=4, running=8), view(1, running=8)
    assert 1 == choose(full, other, full, 0.99)
    nearly = view(0, waiting=1, running=8)
    assert 0 == choose(nearly, other, nearly, 0.99)


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
    assert EMPTY._replace(room=0).pressure > view(1, waiting=10_000).pressure
