"""Finds the least number of replicas that keeps a promise, with as few trials as it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadtest.plan.option import Promise
from loadtest.plan.trial import Seen

MOST_GROWTH = 4
"""Times that the number grows before the search ends without an answer."""
FAR = 0.05
"""An attainment that misses by more needs many more replicas, not a few."""
FINE = 0.03
"""Of the replicas: closer than this, what is enough and what is not tell two numbers apart by chance."""


@dataclass(frozen=True, slots=True)
class Least:
    """Is how a search ended."""

    replicas: int
    holds: bool
    """False where nothing that was tried is enough; `replicas` is the most then."""
    missed: str
    """The SLO that the largest number that is not enough missed; empty where no trial missed one."""


def find_least(tried: Callable[[int], Seen], promise: Promise, floor: int, guess: int) -> Least:
    """Try numbers of replicas: the guess, more until one is enough, then what lies between.

    Args:
        tried: simulates so many.
        promise: what must be kept.
        floor: with fewer, more comes than goes; a trial that says otherwise was too short, so none is made.
        guess: to begin with.
    """
    bad, missed = floor - 1, ""
    good: int | None = None
    at, grown = max(floor, guess), 0
    while True:
        seen = tried(at)
        if seen.attainment >= promise.attainment:
            good = at
        else:
            bad, missed = at, "TTFT SLO" if seen.ttft_p99_s > promise.ttft_p99_s else "ITL SLO"
        if good is not None:
            if good - bad <= max(1, FINE * good):
                return Least(good, True, missed)
            at = (good + bad) // 2
        elif grown == MOST_GROWTH:
            return Least(at, False, missed)
        else:
            grown += 1
            at = max(at + 1, round((1.2 if seen.attainment > promise.attainment - FAR else 1.6) * at))
