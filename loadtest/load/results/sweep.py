"""The highest rate that holds the SLO, by bisection.

Trials are noisy, so both ends of the answer are tried again until they are sure enough. If an end turns out to be
wrong, it moves, and the search continues from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cluster.errors import SettingsError
from cluster.plural import counted
from loadtest.load.results.attainment import Attainment, Course, attainment, majority

SPARE_TRIALS = 2
"""Trials per rate that may be ignored: those that broke their bounds while the generator itself was late.

They tell nothing about the cluster. Further ones count, and the answer reports it.
"""
END_TRIALS = 3
"""Most trials of an end of the answer, as a multiple of those of other rates."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run at one rate."""

    rate: float
    repeat: int
    held: bool
    """Whether it met its bounds."""
    trusted: bool
    """Whether the generator was not the bottleneck."""
    good: int
    ended: int
    figures: dict[str, Any]
    course: Course = ()


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Parameters of a search."""

    low: float = 1.0
    """Requests per second of the first trial."""
    high: float = 1000.0
    """Highest rate to try, in requests per second."""
    repeats: int = 3
    """Trials at a rate, with different seeds. The majority decides, and no trial runs after it is clear."""
    precision: float = 0.1
    """Gap between the highest good and the lowest bad rate, as a part, at which the search ends."""
    confidence: float = 0.9
    """Confidence of each end of the answer. An end is tried again until it has this, or has had all its trials."""
    floor: float | None = None
    """Lowest rate to try if `low` does not hold; None tries none below it."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: a value is out of range.
        """
        if not 0 < self.low < self.high:
            raise SettingsError(f"sweep: rates must be 0 < low < high, got {self.low:g} and {self.high:g}")
        if self.repeats < 1 or self.repeats % 2 == 0:
            raise SettingsError(f"sweep: repeats must be an odd number of at least 1, got {self.repeats}")
        if not 0.005 <= self.precision < 1:
            raise SettingsError(f"sweep: precision must be from 0.005 to below 1, got {self.precision:g}")
        if not 0.5 <= self.confidence < 1:
            raise SettingsError(f"sweep: confidence must be from 0.5 to below 1, got {self.confidence:g}")
        if self.floor is not None and self.floor <= 0:
            raise SettingsError(f"sweep: floor must be above 0, got {self.floor:g}")


@dataclass(frozen=True, slots=True)
class KneeEnd:
    """One end of the answer."""

    rate: float
    held: int
    """Number of trials that held."""
    tried: int
    """Number of trials that counted."""
    confidence: float
    """Probability, from its trials, that the verdict on the rate is right."""
    attainment: Attainment | None


@dataclass(frozen=True, slots=True)
class Knee:
    """Result of a search."""

    holds: KneeEnd | None
    """Highest rate that held; None if none did."""
    fails: KneeEnd | None
    """Lowest rate that did not hold; None if all did."""
    trusted: bool
    """Whether the generator was the bottleneck in no trial that decided."""
    trials: Sequence[Trial]
    ended: bool = True
    """Whether the search ended. If it was cut off, the ends are those known so far."""

    @property
    def confidence(self) -> float:
        """Probability that both ends are right."""
        return math.prod(end.confidence for end in (self.holds, self.fails) if end is not None)

    def as_json(self) -> dict[str, Any]:
        at = self.holds.attainment if self.holds is not None else None
        return {
            "knee_rps": self.holds and self.holds.rate,
            "fails_rps": self.fails and self.fails.rate,
            "interval_rps": [self.holds and self.holds.rate, self.fails and self.fails.rate],
            "confidence": self.confidence,
            "attainment_95": at and [at.low, at.high],
            "holds": self.holds and asdict(self.holds),
            "fails": self.fails and asdict(self.fails),
            "trusted": self.trusted,
            "ended": self.ended,
            "trials": [
                {name: value for name, value in asdict(trial).items() if name != "course"} for trial in self.trials
            ],
        }

    def sentence(self) -> str:
        """Return the result as a sentence."""
        if not self.ended:
            return f"The search was cut off after {counted(len(self.trials), 'trial')}: {self._so_far()}"
        if self.holds is None:
            fails = self.fails
            return (
                f"not even {fails.rate:.4g} requests/s hold the SLO ({_votes(fails)})" if fails else "nothing was tried"
            )
        most = "and no higher rate was tried"
        if self.fails is not None:
            most = f"{self.fails.rate:.4g} do not ({_votes(self.fails)})"
        sure = _votes(self.holds)
        if (at := self.holds.attainment) is not None:
            sure += f", attainment {at.low:.1%} to {at.high:.1%} with 95 % confidence"
        return f"{self.holds.rate:.4g} requests/s hold the SLO ({sure}), {most}; confidence {self.confidence:.0%}"

    def _so_far(self) -> str:
        known = [
            f"{end.rate:.4g} requests/s {what} the SLO ({_votes(end)})"
            for end, what in ((self.holds, "hold"), (self.fails, "do not hold"))
            if end is not None
        ]
        if not known:
            return "no rate had all its trials, so neither bound is known"
        missing = "upper" if self.fails is None else "lower" if self.holds is None else ""
        return "; ".join([*known, *([f"the {missing} bound is not known"] if missing else [])])


def _votes(end: KneeEnd) -> str:
    return f"{end.held} of {counted(end.tried, 'trial')} held"


@dataclass(slots=True)
class _Votes:
    """Trials of one rate."""

    counted: list[Trial] = field(default_factory=list)
    ran: int = 0
    spare: int = SPARE_TRIALS

    @property
    def held(self) -> int:
        return sum(one.held for one in self.counted)

    @property
    def holds(self) -> bool:
        return 2 * self.held > len(self.counted)

    @property
    def confidence(self) -> float:
        sure = majority(self.held, len(self.counted))
        return sure if self.holds else 1 - sure


class Search:
    """Search for the knee: it doubles from the lowest rate until one fails, halves the gap in ratio, and tries both
    ends again. Its trials remain known even if a trial's exception leaves `run`.
    """

    def __init__(self, plan: SearchPlan, trial: Callable[[float, int], Trial]) -> None:
        """`trial` runs a rate; its second argument counts repeats, and must change the seed."""
        self._plan = plan
        self._trial = trial
        self._votes: dict[float, _Votes] = {}
        self._trials: list[Trial] = []

    def run(self) -> Knee:
        """Search until both ends are sure, or have had all their trials."""
        while True:
            good, bad = self._bracket()
            if not any(self._moved(rate) for rate in (bad, good) if rate is not None):
                return self._knee(good, bad)

    def so_far(self) -> Knee:
        """Return the result of a search that did not end: the nearest rates that a majority of trials decided."""
        decided = {rate: votes.holds for rate, votes in self._votes.items() if self._decided(votes)}
        good = max((rate for rate, held in decided.items() if held), default=None)
        bad = min((rate for rate, held in decided.items() if not held and rate > (good or 0.0)), default=None)
        return replace(self._knee(good, bad), ended=False)

    def _decided(self, votes: _Votes) -> bool:
        most = self._plan.repeats // 2
        return max(votes.held, len(votes.counted) - votes.held) > most and 2 * votes.held != len(votes.counted)

    def _bracket(self) -> tuple[float | None, float | None]:
        plan = self._plan
        floor = min(plan.low, plan.floor or plan.low)
        good: float | None = None
        bad: float | None = None
        rate = plan.low
        while bad is None and self._holds(rate):
            good = rate
            if rate >= plan.high:
                return good, None
            rate = min(2 * rate, plan.high)
        bad = rate
        while good is None and rate > floor:
            rate = max(rate / 2, floor)
            if self._holds(rate):
                good = rate
            else:
                bad = rate
        while good is not None and bad / good > 1 + plan.precision:
            middle = math.sqrt(good * bad)
            if self._holds(middle):
                good = middle
            else:
                bad = middle
        return good, bad

    def _holds(self, rate: float) -> bool:
        """Decide a rate by majority. A rate that has its trials is not tried again."""
        votes = self._votes.setdefault(rate, _Votes())
        # An even number of later trials may leave the rate undecided again.
        while not self._decided(votes):
            self._run(rate, votes)
        return votes.holds

    def _run(self, rate: float, votes: _Votes) -> None:
        while True:
            each = self._trial(rate, votes.ran)
            self._trials.append(each)
            votes.ran += 1
            if each.held or each.trusted or not votes.spare:
                votes.counted.append(each)
                return
            votes.spare -= 1

    def _moved(self, rate: float) -> bool:
        """Try an end again until it is sure enough. Return whether its verdict changed."""
        votes, before = self._votes[rate], self._votes[rate].holds
        while votes.confidence < self._plan.confidence and len(votes.counted) < END_TRIALS * self._plan.repeats:
            self._run(rate, votes)
            if 2 * votes.held != len(votes.counted) and votes.holds is not before:
                return True
        return False

    def _knee(self, good: float | None, bad: float | None) -> Knee:
        ends = [None if rate is None else self._end(rate) for rate in (good, bad)]
        deciding = [one for rate in (good, bad) if rate is not None for one in self._votes[rate].counted]
        return Knee(ends[0], ends[1], all(one.trusted for one in deciding), self._trials)

    def _end(self, rate: float) -> KneeEnd:
        votes = self._votes[rate]
        found = attainment([one.course or [(one.ended, one.good)] for one in votes.counted])
        return KneeEnd(rate, votes.held, len(votes.counted), votes.confidence, found)
