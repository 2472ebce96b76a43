"""How near a plan is to fewer replicas: the confidence with which they would be enough too."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from loadtest.plan.option import Engine, Operation, Promise, rate_of
from loadtest.plan.traffic import Load
from loadtest.plan.trial import production, try_out

LEVELS = tuple(number / 10 for number in range(1, 10))
"""Confidences that are looked at."""
MOST = 10
"""Replicas above which one less is a small part, and not looked at."""


def confidence_with(
    replicas: int,
    engine: Engine,
    operation: Operation,
    load: Load,
    promise: Promise,
    *,
    seed: int = 1,
    tell: Callable[[str], None] = lambda _: None,
) -> float:
    """Return the largest of `LEVELS` below the promise's confidence with which a number of replicas keeps the promise;
    0 where none does.
    """

    def misses(level: float) -> bool:
        slow = engine.at(level)
        if (
            replicas * engine.lanes * rate_of(slow.steps, operation.batch, load.shape, operation.step_tokens)
            < load.rate
        ):
            # The queue would grow without end, which a trial may be too short to show.
            return True
        tell(f"{engine.name}: {replicas} with a confidence of {level:.0%}")
        fast = production(slow, load, promise)
        return try_out(slow, operation, load, promise, replicas, seed=seed, fast=fast).attainment < promise.attainment

    levels = [level for level in LEVELS if level < promise.confidence]
    held = bisect_left(levels, True, key=misses)
    return levels[held - 1] if held else 0.0
