"""The confidence interval of a run's SLO attainment.

Requests that meet the same burst or queue depend on each other. A thousand of them may tell no more than fifty
independent ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

Course = Sequence[tuple[int, int]]
"""For each second of one run: requests that ended, and those of them within their SLO."""

LEAST_BLOCKS = 8
"""Least number of blocks. A variance of fewer values tells little."""
BLOCKS_S = (1, 2, 5, 10, 20, 40, 80, 160, 320)
"""Block lengths in seconds. The length at which requests depend on each other most is used."""
CONFIDENCE = 0.95


def course_of(figures: Mapping[str, Any]) -> Course:
    """Return the course of a run after its warm-up.

    Nothing is counted in the warm-up, and its empty seconds would look as if all requests came in one burst after it.
    Empty seconds after the end of the load would look so too, when all but the longest requests are over. Both are left
    out.

    Args:
        figures: those of `outputs.figures`.
    """
    scenario = figures["scenario"]
    begin, end = int(scenario["warmup_s"]), scenario["duration_s"]
    return [
        (second["ended"], second["good"])
        for second in figures["timeline"]
        if second["second"] >= begin and (second["second"] < end or second["ended"])
    ]


@dataclass(frozen=True, slots=True)
class Attainment:
    """Part of the requests within their SLO, with its confidence interval."""

    requests: int
    part: float
    low: float
    high: float
    """Bounds of the interval with 95 % confidence."""
    design_effect: float
    """Number of requests that tell as much as one independent request; 1 or more."""


def attainment(courses: Sequence[Course]) -> Attainment | None:
    """Pool runs at one rate with different seeds; None where no request ended.

    Each run is cut into blocks of equal length. If requests were independent, the misses of blocks would scatter like
    coin flips. The ratio of their scatter to that is the design effect. Where hardly anything was missed, it shows
    nothing. The scatter of the ends themselves is then a lower bound, because requests that come in bursts of ten wait
    together.
    """
    ended = sum(count for course in courses for count, _ in course)
    if not ended:
        return None
    part = sum(good for course in courses for _, good in course) / ended
    effect, degrees = 1.0, math.inf
    for length in BLOCKS_S:
        blocks = [block for course in courses for block in _blocks(course, length)]
        if len(blocks) < LEAST_BLOCKS:
            break
        found = max(_of_misses(blocks, part), _of_ends(blocks))
        if found > effect:
            effect, degrees = found, len(blocks) - 1
    effect = min(effect, float(ended))
    low, high = wilson(part * ended / effect, ended / effect, student(CONFIDENCE, degrees))
    # Rounding must not leave the part itself outside.
    return Attainment(ended, part, min(part, low), max(part, high), effect)


def _blocks(course: Course, length: int) -> Iterator[tuple[int, int]]:
    for at in range(0, len(course) - len(course) % length, length):
        piece = course[at : at + length]
        yield sum(count for count, _ in piece), sum(good for _, good in piece)


def _of_misses(blocks: Sequence[tuple[int, int]], part: float) -> float:
    # Count the blocks alone: a rest that fills no block has no part in their scatter.
    ended = sum(count for count, _ in blocks)
    if not 0 < part < 1 or not ended:
        return 1.0
    scatter = sum((good - part * count) ** 2 for count, good in blocks) * len(blocks) / (len(blocks) - 1)
    return scatter / (ended * part * (1 - part))


def _of_ends(blocks: Sequence[tuple[int, int]]) -> float:
    mean = sum(count for count, _ in blocks) / len(blocks)
    if not mean:
        return 1.0
    return sum((count - mean) ** 2 for count, _ in blocks) / (len(blocks) - 1) / mean


def student(confidence: float, degrees: float) -> float:
    """Return the two-sided quantile of Student's t from the normal one; within 2 % from 4 degrees of freedom on."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    if math.isinf(degrees):
        return z
    first = (z**3 + z) / (4 * degrees)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    return z + first + second


def wilson(good: float, ended: float, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's score interval of a part, by default with 95 % confidence. `ended` must be above 0."""
    part = good / ended
    base = 1 + z * z / ended
    centre = (part + z * z / (2 * ended)) / base
    half = z * math.sqrt(max(0.0, part * (1 - part)) / ended + z * z / (4 * ended * ended)) / base
    return max(0.0, min(part, centre - half)), min(1.0, max(part, centre + half))


def majority(held: int, tried: int) -> float:
    """Return the probability that such trials hold more often than not.

    It follows from `held` of `tried` trials that held, with no knowledge before them.
    """
    ways: int = sum(math.comb(tried + 1, count) for count in range(held + 1))
    return ways / float(2 ** (tried + 1))
