"""The highest rate that holds the SLO, by bisection. Trials are noisy, so a verdict needs repeats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cluster.errors import SettingsError

SPARE_TRIALS = 2
"""At each rate so many trials that broke their bounds, with a generator that was late itself, are not counted: they say
nothing about the cluster. Further ones count, and the answer says so."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Is one run at one rate."""

    rate: float
    repeat: int
    held: bool
    """It met its bounds."""
    trusted: bool
    """The generator was not the bottleneck."""
    good: int
    ended: int
    figures: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """Says how to search."""

    low: float
    """Requests per second that surely hold; checked first."""
    high: float
    """Where to stop looking."""
    repeats: int = 3
    """Trials at a rate, with different seeds; the majority decides, and no more are run than it takes."""
    precision: float = 0.1
    """Ends when the rates that hold and that don't are so close, as a part."""

    def __post_init__(self) -> None:
        """Check.

        Raises:
            SettingsError: a value is out of range.
        """
        if not 0 < self.low < self.high:
            raise SettingsError(f"sweep: rates must be 0 < low < high, got {self.low:g} and {self.high:g}")
        if self.repeats < 1 or self.repeats % 2 == 0:
            raise SettingsError(f"sweep: repeats must be an odd number of at least 1, got {self.repeats}")
        if not 0.005 <= self.precision < 1:
            raise SettingsError(f"sweep: precision must be from 0.005 to below 1, got {self.precision:g}")


@dataclass(frozen=True, slots=True)
class Knee:
    """Is what a search found."""

    holds: float | None
    """Highest rate that held; None: not even the lowest one did."""
    fails: float | None
    """Lowest rate that did not; None: all did."""
    attainment: tuple[float, float] | None
    """95 % interval of the part of requests within the SLO at `holds`."""
    votes: str
    """Trials that held at `holds`, such as 2/3."""
    trusted: bool
    """No generator was the bottleneck in a trial that decided."""
    trials: Sequence[Trial]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "knee_rps": self.holds,
            "fails_rps": self.fails,
            "interval_rps": [self.holds, self.fails],
            "attainment_95": self.attainment,
            "votes": self.votes,
            "trusted": self.trusted,
            "trials": [asdict(trial) for trial in self.trials],
        }

    def sentence(self) -> str:
        """Say it."""
        if self.holds is None:
            return f"not even {self.fails:g} requests/s hold the SLO" if self.fails else "nothing was tried"
        most = f"{self.fails:.4g} do not" if self.fails is not None else "and no higher rate was tried"
        sure = f", attainment {self.attainment[0]:.1%} to {self.attainment[1]:.1%}" if self.attainment else ""
        return f"{self.holds:.4g} requests/s hold the SLO ({self.votes} trials{sure}), {most}"


def search(plan: Plan, trial: Callable[[float, int], Trial]) -> Knee:
    """Find the knee: double from the lowest rate until one fails, then halve the gap in ratio.

    Args:
        plan: bounds and precision.
        trial: runs a rate; the second argument counts repeats, and is to change the seed.
    """
    trials: list[Trial] = []
    votes: dict[float, list[Trial]] = {}

    def holds(rate: float) -> bool:
        most, ran, spare = plan.repeats // 2, 0, SPARE_TRIALS
        counted = votes.setdefault(rate, [])
        while True:
            each = trial(rate, ran)
            trials.append(each)
            ran += 1
            if not each.held and not each.trusted and spare:
                spare -= 1
                continue
            counted.append(each)
            held = sum(one.held for one in counted)
            if held > most or len(counted) - held > most:
                return held > most

    good: float | None = None
    bad: float | None = None
    rate = plan.low
    while bad is None:
        if not holds(rate):
            bad = rate
        else:
            good = rate
            if rate >= plan.high:
                break
            rate = min(2 * rate, plan.high)
    while good is not None and bad is not None and bad / good > 1 + plan.precision:
        middle = math.sqrt(good * bad)
        if holds(middle):
            good = middle
        else:
            bad = middle
    return _knee(good, bad, votes, trials)


def _knee(
    good: float | None, bad: float | None, votes_by_rate: Mapping[float, Sequence[Trial]], trials: Sequence[Trial]
) -> Knee:
    at_good = votes_by_rate[good] if good is not None else []
    deciding = [*at_good, *(votes_by_rate[bad] if bad is not None else [])]
    ended = sum(trial.ended for trial in at_good)
    interval = wilson(sum(trial.good for trial in at_good), ended) if ended else None
    votes = f"{sum(trial.held for trial in at_good)}/{len(at_good)}"
    return Knee(good, bad, interval, votes, all(trial.trusted for trial in deciding), trials)


def wilson(good: int, ended: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's score interval of a part, by default with 95 % confidence; `ended` above 0."""
    part = good / ended
    base = 1 + z * z / ended
    centre = (part + z * z / (2 * ended)) / base
    half = z * math.sqrt(part * (1 - part) / ended + z * z / (4 * ended * ended)) / base
    return max(0.0, centre - half), min(1.0, centre + half)
