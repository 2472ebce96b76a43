"""The tuning of each policy's one dial: the lowest cost that reaches the attainment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadtest.benchmarks.autoscaler.contest import ContestResult

ENOUGH = 0.99


def cheapest(results: Sequence[ContestResult]) -> ContestResult:
    """Return the result with the fewest hours of those that attain enough, else the one nearest to it."""
    return min(results, key=lambda each: (-min(ENOUGH, each.attainment), each.gpu_hours))


def cheapest_of_all(families: Sequence[Sequence[ContestResult]]) -> list[ContestResult]:
    """Return the runs of the cheapest family over all loads.

    Of the families that attain enough on average, it is the cheapest; else the one nearest to it. Each family has run
    on the same loads.
    """

    def key(runs: Sequence[ContestResult]) -> tuple[float, float]:
        attained = sum(each.attainment for each in runs) / len(runs)
        return -min(ENOUGH, attained), sum(each.gpu_hours for each in runs)

    best = min(families, key=key)
    return list(best)


def tune(dials: Sequence[float], run: Callable[[float], Sequence[ContestResult]], enough: float = ENOUGH) -> float:
    """Return the cheapest dial that reaches the attainment on average, else the one nearest to it.

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
