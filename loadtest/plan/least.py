"""Search for the smallest number of replicas that keeps a promise, with few trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadtest.plan.option import Promise
from loadtest.plan.trial import TrialFigures

MOST_GROWTH = 4
"""Times that the number grows before the search ends without an answer."""
FAR = 0.05
"""A larger miss of the attainment needs many more replicas, not a few."""
LOST = 2
"""Such misses after which the largest number is tried next. Where it is not enough, those between are not either, and
each takes as long to try.
"""
FINE = 0.03
"""Part of the replicas below which the search stops: closer numbers differ only by chance."""


@dataclass(frozen=True, slots=True)
class Least:
    """Result of a search."""

    replicas: int
    holds: bool
    """False where no number that was tried is enough. `replicas` is the largest of them then."""
    missed: str
    """SLO that the largest insufficient number missed. Empty where no trial missed one."""


def find_least(tried: Callable[[int], TrialFigures], promise: Promise, floor: int, guess: int) -> Least:
    """Try numbers of replicas: the guess, then more until a number is enough, then numbers between. After `LOST` far
    misses the largest of them goes first.

    Args:
        tried: simulates a number of replicas.
        promise: the SLO to keep.
        floor: with fewer replicas the queue grows without end. A trial that passes there was too short, so none is run.
        guess: the number to begin with.
    """
    bad, missed = floor - 1, ""
    good: int | None = None
    at, grown, lost = max(floor, guess), 0, 0
    most, known = at, dict[int, TrialFigures]()
    for _ in range(MOST_GROWTH):
        most = _more(most, far=True)
    while True:
        if lost == LOST and most not in known:
            known[most] = tried(most)
            if known[most].attainment < promise.attainment:
                return Least(most, False, _missed(known[most], promise))
        seen = known[at] if at in known else tried(at)
        if seen.attainment >= promise.attainment:
            good = at
        else:
            bad, missed = at, _missed(seen, promise)
        if good is not None:
            if good - bad <= max(1, FINE * good):
                return Least(good, True, missed)
            at = (good + bad) // 2
        elif grown == MOST_GROWTH:
            return Least(at, False, missed)
        else:
            far = seen.attainment <= promise.attainment - FAR
            grown, lost = grown + 1, lost + far
            at = _more(at, far=far)


def _more(replicas: int, *, far: bool) -> int:
    return max(replicas + 1, round((1.6 if far else 1.2) * replicas))


def _missed(seen: TrialFigures, promise: Promise) -> str:
    return "TTFT SLO" if seen.ttft_p99_s > promise.ttft_p99_s else "ITL SLO"
