"""Loads as ticks of work, drawn from seeds."""

from __future__ import annotations

import random
from collections.abc import Callable

from cluster.hindsight.fluid import LoadTick

TICK_S = 15.0
WORK_S = 4.0
"""Mean replica-seconds of a request."""


def bursty(variation: float, seconds: float, seed: int, rate: float = 2.0) -> list[LoadTick]:
    """Draw arrivals whose gaps have a coefficient of variation, by a gamma distribution."""
    rnd = random.Random(seed)
    shape = variation**-2
    return _ticks(seconds, rnd, lambda _: rnd.gammavariate(shape, 1.0 / shape / rate))


def changing(rate: Callable[[float], float], seconds: float, seed: int) -> list[LoadTick]:
    """Draw chance arrivals at a rate that changes over time."""
    rnd = random.Random(seed)
    return _ticks(seconds, rnd, lambda at: rnd.expovariate(rate(at)))


def _ticks(seconds: float, rnd: random.Random, gap: Callable[[float], float]) -> list[LoadTick]:
    works, counts, at = [0.0] * int(seconds / TICK_S), [0] * int(seconds / TICK_S), gap(0.0)
    while at < TICK_S * len(works):
        place = int(at / TICK_S)
        works[place] += rnd.expovariate(1.0 / WORK_S)
        counts[place] += 1
        at += gap(at)
    pairs = enumerate(zip(works, counts, strict=True))
    return [LoadTick((place + 1) * TICK_S, TICK_S, work, count) for place, (work, count) in pairs]
