"""Fit of the step model while an engine runs: recursive least squares on single steps, with safeguards.

Single steps vary in tokens and context, so they tell the coefficients apart. Averaged metrics would not. Errors are
relative to the step's length. Otherwise a few long prefills would outweigh all the short decodes.

Safeguards: Old samples fade. Coefficients never go below their floors. Directions that the samples leave open keep the
last good value. A step that is far off the prediction (graph capture, garbage collection, a busy machine) is left out,
until a long row of such steps shows that the engine itself has changed. A fit with bad predictions reports that.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from cluster.control.least_squares import Matrix, condition, solve_with_floors
from cluster.control.step_model import Experts, StepModel, StepSample

_SCALES = (1e-3, 1e-5, 1e-8, 1e-3)
"""Usual sizes of a, b, g and m. They bring the numbers in the matrix to one order of magnitude."""


@dataclass(frozen=True, slots=True)
class FitRules:
    """Constants of the fit."""

    forgetting: float = 0.995
    """Factor on a sample's weight with each further sample."""
    anchor: float = 0.02
    """Trust in the last good value along each coefficient, in samples. It caps the covariance: a coefficient does not
    move where samples say nothing about it."""
    a_floor: float = 1e-6
    """Seconds. The time to read the weights, where that is known."""
    max_condition: float = 1000.0
    """Condition number above which the samples do not tell the coefficients apart."""
    gate: float = 4.0
    """Standard deviations from the prediction beyond which a step is left out."""
    huber: float = 1.5
    """Standard deviations beyond which a step counts less."""
    least_deviation: float = 0.02
    """Smallest standard deviation that the gate assumes, relative."""
    regime: int = 30
    """Left-out steps in a row after which they are no outliers: the engine has changed."""
    error_window: int = 200
    min_samples: int = 50
    """Samples before which no fit is relied on."""
    max_error: float = 0.25
    """Largest median error of a reliable fit, relative."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Key of the engines that share a fit."""

    model_digest: str
    hardware: str
    tensor_parallel_size: int
    engine_version: str

    def __str__(self) -> str:
        return f"{self.model_digest[:12]}-{self.hardware}-tp{self.tensor_parallel_size}-{self.engine_version}"


@dataclass(frozen=True, slots=True)
class FittedStep:
    """A fit as it is stored and handed on. A new replica of the group starts from it."""

    group: str
    """A `GroupKey` as text. A fit is good for that group only."""
    model: StepModel
    samples: int
    median_error: float
    """Relative error of predictions that were made before each step was learned from."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> FittedStep:
        """Read what `to_json` wrote.

        Raises:
            ValueError, KeyError, TypeError: the text is anything else.
        """
        data = json.loads(text)
        model = dict(data["model"])
        experts = model.pop("experts", None)
        fitted = StepModel(**{k: float(v) for k, v in model.items()}, experts=Experts(**experts) if experts else None)
        samples, error = float(data["samples"]), float(data["median_error"])
        if not all(0 <= number < math.inf for number in (fitted.a, fitted.b, fitted.g, fitted.m, samples, error)):
            # Python's JSON reads NaN and infinity too.
            raise ValueError(f"a fit's numbers are finite and not negative: {text[:200]}")
        return cls(str(data["group"]), fitted, int(samples), error)


class StepFit:
    """A fit that learns from samples. It has no clock: its state depends on the samples alone.

    Args:
        prior: the model to start from; None starts from nothing.
        rules: the constants.
        experts: the mixture of experts of the model, if it has one.
    """

    def __init__(
        self, prior: StepModel | None = None, rules: FitRules | None = None, experts: Experts | None = None
    ) -> None:
        self._rules = rules or FitRules()
        self._experts = experts or (prior.experts if prior else None)
        self._size = 4 if self._experts else 3
        self._gram: Matrix = [[0.0] * self._size for _ in range(self._size)]
        self._right = [0.0] * self._size
        self._good = _values(prior, self._size) if prior else None
        self._now = self._good
        self._seeded = prior is not None
        self._deviation = 0.2
        self._typical = 0.0
        """Averaged step time, seconds."""
        self._strangers = 0
        """Steps in a row that the gate left out."""
        self._errors: deque[float] = deque(maxlen=self._rules.error_window)
        self.samples = 0
        """Steps learned from."""
        self.rejected = 0
        """Steps left out."""
        self.condition = float("inf")
        """Condition number of the last solution. Above `max_condition` the last good coefficients fill what the samples
        leave open."""

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def model(self) -> StepModel | None:
        """Model as of now; None before anything is known."""
        return _model(self._now, self._experts) if self._now else None

    @property
    def median_error(self) -> float | None:
        """Median of |predicted - measured| / measured over the last steps, predicted before they were learned from."""
        return statistics.median(self._errors) if self._errors else None

    @property
    def mean_error(self) -> float | None:
        """Mean of the same errors. Outliers count."""
        return statistics.fmean(self._errors) if self._errors else None

    @property
    def healthy(self) -> bool:
        """Whether the model is reliable. A seeded one counts from the start, until its errors say otherwise."""
        if self._now is None:
            return False
        if len(self._errors) < self._rules.min_samples:
            return self._seeded
        return (self.median_error or 0.0) <= self._rules.max_error

    @property
    def trusted(self) -> StepModel | None:
        """Model while it is healthy, else None."""
        return self.model if self.healthy else None

    def fitted(self, group: str) -> FittedStep | None:
        """Return the fit to store; None while it is not worth storing."""
        model = self.trusted
        if model is None or self.samples < self._rules.min_samples or self.median_error is None:
            return None
        return FittedStep(group, model, self.samples, self.median_error)

    # --- learning -----------------------------------------------------------------------------------------------------

    def learn(self, samples: Iterable[StepSample]) -> None:
        """Learn from steps, in the order in which they ran."""
        changed = False
        for sample in samples:
            changed |= self._take(sample)
            # The first samples decide what counts as an outlier. Later ones can wait for the end of the batch.
            if changed and (self.samples < self._rules.min_samples or self.samples % 64 == 0):
                self._solve()
                changed = False
        if changed:
            self._solve()

    def _take(self, sample: StepSample) -> bool:
        if sample.seconds <= 0 or sample.tokens <= 0:
            return False
        row = self._row(sample)
        weight = 1.0
        expected = self._predict(row)
        if expected is not None:
            error = (sample.seconds - expected) / sample.seconds
            self._errors.append(abs(error))
            # Relative to the prediction: a step that is ten times as long is off by 9, not by 0.9.
            away = (sample.seconds - expected) / expected
            found = self._weight(away)
            if found is None:
                return False
            weight = found
        self._typical = sample.seconds if not self.samples else 0.99 * self._typical + 0.01 * sample.seconds
        unit = max(expected if expected is not None else sample.seconds, 0.25 * self._typical)
        self._add(row, sample.seconds, weight / unit**2)
        self.samples += 1
        return True

    def _weight(self, away: float) -> float | None:
        """Return the weight of a step; None leaves it out."""
        rules = self._rules
        deviation = max(self._deviation, rules.least_deviation)
        ready = self.samples >= rules.min_samples or self._seeded
        if ready and abs(away) > rules.gate * deviation:
            self.rejected += 1
            self._strangers += 1
            if self._strangers < rules.regime:
                return None
            # The learned values are no longer true. Old samples fade fast, so that the next steps count.
            self._fade(0.1)
            self._deviation = max(self._deviation, abs(away) / rules.gate)
        self._strangers = 0
        # 1.25 mean absolute deviations are a standard deviation.
        bounded = min(abs(away), rules.gate * deviation)
        self._deviation += 0.02 * (1.2533 * bounded - self._deviation)
        return 1.0 if abs(away) <= rules.huber * deviation else rules.huber * deviation / abs(away)

    def _row(self, sample: StepSample) -> list[float]:
        row = [_SCALES[0], _SCALES[1] * sample.tokens, _SCALES[2] * sample.kv_tokens]
        if self._experts:
            row.append(_SCALES[3] * self._experts.share_read(sample.tokens))
        return row

    def _predict(self, row: list[float]) -> float | None:
        if self._now is None:
            return None
        return max(self._rules.a_floor, sum(x * t for x, t in zip(row, self._now, strict=True)))

    def _add(self, row: list[float], seconds: float, weight: float) -> None:
        self._fade(self._rules.forgetting)
        for i, x in enumerate(row):
            scaled = weight * x
            self._right[i] += scaled * seconds
            for j, y in enumerate(row):
                self._gram[i][j] += scaled * y

    def _fade(self, factor: float) -> None:
        for i in range(self._size):
            self._right[i] *= factor
            for j in range(self._size):
                self._gram[i][j] *= factor

    def _solve(self) -> None:
        rules = self._rules
        floors = [rules.a_floor / _SCALES[0], *([0.0] * (self._size - 1))]
        self.condition = condition(self._gram)
        told_apart = self.condition <= rules.max_condition
        anchor = self._good or [1.0, *([0.0] * (self._size - 1))]
        # Each ridge is in its coefficient's own unit. A coefficient whose column is all zero needs some weight too.
        trace = sum(self._gram[i][i] for i in range(self._size)) / self._size
        gram = [list(row) for row in self._gram]
        right = list(self._right)
        for i in range(self._size):
            ridge = rules.anchor * self._gram[i][i] + 1e-9 * trace
            if told_apart:
                ridge *= 0.01
            gram[i][i] += ridge
            right[i] += ridge * anchor[i]
        solved = solve_with_floors(gram, right, floors)
        if solved is None:
            return
        self._now = solved
        if told_apart or self._good is None:
            self._good = solved


def _values(model: StepModel, size: int) -> list[float]:
    return [v / s for v, s in zip((model.a, model.b, model.g, model.m)[:size], _SCALES[:size], strict=True)]


def _model(values: list[float], experts: Experts | None) -> StepModel:
    a, b, g, m = (v * s for v, s in zip((*values, 0.0)[:4], _SCALES, strict=True))
    return StepModel(a, b, g, m, experts)
