"""Turns each policy's one dial until it reaches the attainment at the lowest cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadtest.benchmarks.autoscaler.contest import Result

ENOUGH = 0.99


def cheapest(results: Sequence[Result], enough: float = ENOUGH) -> Result:
    """Return the one with the fewest hours of those that attain enough, else the one that comes nearest."""
    return min(results, key=lambda each: (-min(enough, each.attainment), each.gpu_hours))


def cheapest_of_all(families: Sequence[Sequence[Result]], enough: float = ENOUGH) -> list[Result]:
    """Return the runs of the family that is the cheapest over all loads of those that attain enough on average, else of
    the one that comes nearest. Each family has run on the same loads.
    """

    def key(runs: Sequence[Result]) -> tuple[float, float]:
        attained = sum(each.attainment for each in runs) / len(runs)
        return -min(enough, attained), sum(each.gpu_hours for each in runs)

    best = min(families, key=key)
    return list(best)


def tune(dials: Sequence[float], run: Callable[[float], Sequence[Result]], enough: float = ENOUGH) -> float:
    """Return the cheapest dial that reaches the attainment on average, else the one that comes nearest.

    Args:
        dials: from the cheapest to the most generous; the attainment is taken to rise along them.
        run: lets the policy serve the loads that it is tuned on.
        enough: the attainment, 0 to 1.
    """
    seen: dict[int, float] = {}

    def attained(place: int) -> float:
        if place not in seen:
            results = run(dials[place])
            seen[place] = sum(each.attainment for each in results) / len(results)
        return seen[place]

    low, high = 0, len(dials) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if attained(middle) >= enough else (middle + 1, high)
    if attained(low) >= enough:
        return dials[low]
    return dials[max(seen, key=lambda place: (seen[place], -place))]
