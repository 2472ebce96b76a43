"""Full collections come as often as Python likes while they are short, and seldom once they are long."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from cluster.gc_tuning import FULL_SHARE, FullCollections


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def collection(full: FullCollections, clock: Clock, generation: int, seconds: float) -> None:
    info = {"generation": generation, "collected": 0, "uncollectable": 0}
    full("start", info)
    clock.now += seconds
    full("stop", info)


def test_after_a_long_one_the_next_has_to_wait() -> None:
    clock = Clock()
    full = FullCollections(clock)
    collection(full, clock, 2, 1.0)
    assert full.held
    assert gc.get_threshold()[2] > 1_000_000

    clock.now += 0.9 / FULL_SHARE
    collection(full, clock, 1, 0.001)
    assert full.held
    clock.now += 0.2 / FULL_SHARE
    collection(full, clock, 0, 0.0)
    assert not full.held
    assert 10 == gc.get_threshold()[2]


def test_short_ones_are_not_held_up_for_long() -> None:
    clock = Clock()
    full = FullCollections(clock)
    collection(full, clock, 2, 0.003)
    clock.now += 1.0
    collection(full, clock, 1, 0.001)

    assert not full.held


def test_the_collector_itself_calls_it() -> None:
    full = FullCollections()
    gc.callbacks.append(full)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(full)

    assert full.held
