"""A search finds the cheapest value of a dial that holds, and says when a floor is cheaper."""

from __future__ import annotations

import pytest

from loadtest.simulate.autoscalers.tuning import Dial, Try, Tuned, tune, verdict


@pytest.mark.parametrize("least", range(1, 41))
def test_the_smallest_number_that_holds_is_found_in_few_runs(least: int) -> None:
    seen = []

    def run(value: float) -> Try:
        seen.append(value)
        return Try(value, 0.99 if value >= least else 0.5, 2 * value)

    found = tune(Dial.counts("replicas", 1, 64), run, 0.99)
    assert Try(least, 0.99, 2 * least) == found.best
    assert len(seen) == len(set(seen)) <= 13
    assert seen == [each.value for each in found.tried]


def test_a_smaller_target_keeps_more_replicas() -> None:
    dial = Dial.between("target", 2.0, 0.05)
    assert (2.0, 0.05) == (dial.values[0], dial.values[-1])
    assert list(dial.values) == sorted(dial.values, reverse=True)
    found = tune(dial, lambda value: Try(value, 1.0 - value / 4, 1 / value), 0.9)
    assert found.best is not None
    loosest = max(value for value in dial.values if 1.0 - value / 4 >= 0.9)
    assert loosest == found.best.value


def test_where_nothing_holds_there_is_no_best() -> None:
    found = tune(Dial.counts("replicas", 1, 9), lambda value: Try(value, 0.1 * value, value), 0.99)
    assert found.best is None
    assert Try(9, 0.9, 9) == max(found.tried, key=lambda each: each.attainment)
    assert "No replicas of static from 1 to 9 holds 99.00%: the most was 90.00% in 9.00 h." in verdict(
        "static", found, None
    )


def test_the_cheapest_that_holds_counts_where_more_replicas_do_worse() -> None:
    """Of 5 and 6 both hold, and 6 is cheaper."""
    hours = {1: 1.0, 2: 2.0, 4: 8.0, 6: 5.0, 5: 7.0, 8: 9.0}
    found = tune(
        Dial.counts("target", 1, 8), lambda value: Try(value, float(value >= 5), hours.get(int(value), 9.0)), 1.0
    )
    assert found.best is not None
    assert 6 == found.best.value


@pytest.mark.parametrize(
    ("best", "floor", "words"),
    [
        (5.0, 4.0, "With this burstiness a floor of 12 replicas (99.20% in 4.00 h) is cheaper."),
        (3.0, 4.0, "That is no dearer than a floor of 12 replicas"),
        (None, 4.0, "With this burstiness it takes a floor of 12 replicas"),
        (3.0, None, "No floor of replicas up to 12 does with its usual dial."),
    ],
)
def test_a_floor_is_told(best: float | None, floor: float | None, words: str) -> None:
    def tuned(dial: str, value: float, hours: float | None) -> Tuned:
        tried = Try(value, 0.992 if hours else 0.9, hours or 9.0)
        return Tuned(dial, 0.99, tried if hours else None, [tried])

    assert words in verdict("penstock", tuned("target", 0.5, best), tuned("min-replicas", 12, floor))
