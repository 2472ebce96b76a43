"""How many cells there are while their number changes."""

from __future__ import annotations

import pytest

from cluster.clock import ManualClock
from cluster.queue.cells.layout import SETTLE_S, CellRecord, Layout


def test_homes_move_only_once_all_routers_know_the_number() -> None:
    clock = ManualClock()
    layout = Layout(2, clock=clock.monotonic)
    layout.change(4)
    assert (4, 4, 2) == (layout.count, layout.span, layout.homes)
    clock.advance(SETTLE_S - 1)
    layout.settle()
    assert 2 == layout.homes
    clock.advance(1)
    layout.settle()
    assert 4 == layout.homes


def test_a_process_that_starts_in_between_has_the_homes_of_the_others() -> None:
    clock = ManualClock()
    layout = Layout(4, clock=clock.monotonic)
    layout.heard(CellRecord(count=4, before=2, most=4, age_ms=3000))
    assert (4, 2) == (layout.count, layout.homes)
    clock.advance(SETTLE_S - 3)
    layout.settle()
    assert 4 == layout.homes


def test_cells_that_are_given_up_are_still_looked_at() -> None:
    layout = Layout(4)
    layout.change(1)
    assert (1, 4) == (layout.count, layout.span)
    late = Layout(1)
    late.heard(CellRecord(count=1, before=4, most=4, age_ms=10**8))
    assert (1, 4, 1) == (late.count, late.span, late.homes)


def test_one_that_only_looks_on_takes_the_number_on_record() -> None:
    layout = Layout(0)
    assert (1, 1) == (layout.count, layout.span)
    layout.heard(CellRecord(count=3, before=5, most=5, age_ms=10**8))
    assert (3, 5, False) == (layout.count, layout.span, layout.known)


@pytest.mark.parametrize("count", [0, 65])
def test_a_number_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="cells must be from 1 to 64"):
        Layout().change(count)


def test_a_newer_number_of_another_router_holds_here_too() -> None:
    clock = ManualClock()
    layout = Layout(2, clock=clock.monotonic)
    layout.heard(CellRecord(count=2, before=1, most=2, age_ms=-1))
    layout.heard(CellRecord(count=4, before=2, most=4, age_ms=1000))
    assert (4, 4, 2) == (layout.count, layout.span, layout.homes)
    clock.advance(SETTLE_S)
    layout.settle()
    assert 4 == layout.homes


def test_the_number_of_the_settings_is_noted_once_and_then_what_is_on_record_is_kept() -> None:
    layout = Layout(2)
    assert (2, 0) == layout.question()
    layout.heard(CellRecord(count=2, before=1, most=4, age_ms=-1))
    assert (2, 4) == layout.question()
    layout.change(3)
    assert (3, 0) == layout.question()
    assert layout.is_due


def test_a_replica_takes_the_number_on_record_only_if_it_is_newer_than_its_own() -> None:
    clock = ManualClock()
    layout = Layout(2, clock=clock.monotonic)
    clock.advance(100)
    layout.follow(CellRecord(count=4, before=2, most=4, age_ms=1000))
    assert (4, 4) == (layout.count, layout.span)
    layout.change(3)
    layout.follow(CellRecord(count=4, before=2, most=4, age_ms=1000))
    assert (3, 0.0) == (layout.count, layout.changed_s())
