"""The record of four weeks: a ring that forgets, and knows what it does not know."""

from __future__ import annotations

import pytest

from cluster.forecast.load_record import SLOT_S, SLOTS, LoadRecord


def test_a_slot_that_nobody_recorded_is_unknown() -> None:
    record = LoadRecord()
    record.put(100, 2.0)
    record.put(103, 5.0)

    assert [2.0, None, None, 5.0] == [record.value(slot) for slot in range(100, 104)]
    assert [(100, 2.0), (103, 5.0)] == list(record.known())


def test_the_ring_forgets_what_is_four_weeks_old() -> None:
    record = LoadRecord()
    record.put(100, 2.0)
    record.put(101, 3.0)
    record.put(100 + SLOTS, 4.0)

    assert [None, 3.0, 4.0] == [record.value(slot) for slot in (100, 101, 100 + SLOTS)]
    record.put(101 + 2 * SLOTS, 5.0)
    assert [(101 + 2 * SLOTS, 5.0)] == list(record.known())


def test_an_older_slot_is_filled_in_and_one_beyond_the_ring_is_not() -> None:
    record = LoadRecord()
    record.put(SLOTS + 10, 1.0)
    record.put(20, 2.0)
    record.put(5, 3.0)

    assert [2.0, None, 1.0] == [record.value(slot) for slot in (20, 5, SLOTS + 10)]


def test_a_clock_that_was_ahead_does_not_block_the_ring() -> None:
    record = LoadRecord()
    for slot in (100, 101, 150):
        record.put(slot, float(slot))
    record.back_to(120)
    assert [(100, 100.0), (101, 101.0)] == list(record.known())
    record.put(90_000, 3.0)
    record.back_to(121)
    assert [] == list(record.known()), "the ring is shorter than that clock was ahead"
    record.put(121, 5.0)

    assert [(121, 5.0)] == list(record.known())
    record.back_to(121)
    record.back_to(500)
    assert [(121, 5.0)] == list(record.known())


def test_the_load_around_a_time_is_a_weighted_mean_of_its_neighbours() -> None:
    record = LoadRecord()
    for slot, value in enumerate((1.0, 2.0, 6.0, 8.0), 50):
        record.put(slot, value)

    # In the middle of a slot: itself, and half of each neighbour.
    assert pytest.approx((0.5 * 1 + 2 + 0.5 * 6) / 2) == record.around(51.5 * SLOT_S)
    # Between two slots.
    assert pytest.approx((0.25 * 1 + 0.75 * 2 + 0.75 * 6 + 0.25 * 8) / 2) == record.around(52 * SLOT_S)
    assert record.around(49.5 * SLOT_S) is None, "only a quarter is known"


def test_a_record_is_the_same_after_it_was_stored() -> None:
    record = LoadRecord()
    for slot in range(SLOTS + 500):
        if slot % 7:
            record.put(slot, float(slot % 50))

    read = LoadRecord.from_bytes(record.newest, record.to_bytes())

    assert list(record.known()) == list(read.known())
    assert SLOTS + 499 == read.newest


def test_a_ring_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=f"has {SLOTS} values, got 10"):
        LoadRecord.from_bytes(3, bytes(40))
