from __future__ import annotations

import pytest

from deployments.engines.share_clock import ShareClock


def test_sequence_that_was_in_every_step_pays_its_share() -> None:
    clock = ShareClock()
    clock.resume(10.0)
    assert clock.step(11.0, 1) == pytest.approx(1.0)
    clock.step(12.0, 4)
    assert clock.total() == pytest.approx(1.25)
    assert clock.total() - clock.at(11.0) == pytest.approx(0.25)


def test_reading_between_two_steps_is_interpolated() -> None:
    clock = ShareClock()
    clock.resume(0.0)
    clock.step(2.0, 2)
    assert clock.at(1.0) == pytest.approx(0.5)


def test_idle_time_is_free() -> None:
    clock = ShareClock()
    clock.resume(0.0)
    clock.step(1.0, 1)
    clock.resume(100.0)
    clock.step(101.0, 1)
    assert clock.total() == pytest.approx(2.0)
    assert clock.at(50.0) == pytest.approx(1.0)


def test_first_step_without_a_start_counts_nothing() -> None:
    clock = ShareClock()
    assert clock.step(5.0, 3) == 0.0
    assert clock.total() == 0.0


def test_moments_out_of_order_never_turn_the_clock_back() -> None:
    clock = ShareClock()
    clock.resume(10.0)
    clock.step(9.0, 1)
    clock.step(11.0, 1)
    assert clock.total() == pytest.approx(1.0)


def test_moment_before_all_memory_reads_the_oldest() -> None:
    clock = ShareClock()
    clock.resume(0.0)
    for step in range(1, 2000):
        clock.step(float(step), 1)
    assert 0 < clock.at(0.0) < clock.total()
