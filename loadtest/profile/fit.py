"""Fits a step model to a recorded set of steps: least squares of relative errors, outliers bounded."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from cluster.control.least_squares import solve_with_floors
from cluster.control.step_model import StepModel, StepSample
from cluster.errors import EngineError

_ROUNDS = 8
_HUBER = 1.5
_SCALES = (1e-3, 1e-5, 1e-8)
LEAST_SAMPLES = 50


def fit_steps(samples: Sequence[StepSample]) -> StepModel:
    """Fit a, b and g.

    Raises:
        EngineError: there are too few steps.
    """
    if len(samples) < LEAST_SAMPLES:
        raise EngineError(f"a profile needs at least {LEAST_SAMPLES} steps, the engine reported {len(samples)}")
    weights = [1.0] * len(samples)
    model = StepModel(0, 0, 0)
    for _ in range(_ROUNDS):
        model = _solve(samples, weights)
        errors = relative_errors(model, samples)
        deviation = max(1e-3, 1.4826 * statistics.median(abs(each) for each in errors))
        # Other work on the machine holds some steps up; they count, but no more than the others.
        weights = [min(1.0, _HUBER * deviation / abs(each)) if each else 1.0 for each in errors]
    return model


def relative_errors(model: StepModel, samples: Sequence[StepSample]) -> list[float]:
    """Return predicted / measured - 1 of each step."""
    return [model.predict(each.tokens, each.kv_tokens) / each.seconds - 1 for each in samples]


def _solve(samples: Sequence[StepSample], weights: Sequence[float]) -> StepModel:
    gram, right = [[0.0] * 3 for _ in range(3)], [0.0] * 3
    for sample, weight in zip(samples, weights, strict=True):
        row = [
            scale * value / sample.seconds
            for scale, value in zip(_SCALES, (1, sample.tokens, sample.kv_tokens), strict=True)
        ]
        for i in range(3):
            right[i] += weight * row[i]
            for j in range(3):
                gram[i][j] += weight * row[i] * row[j]
    for i in range(3):
        gram[i][i] *= 1 + 1e-9
    found = solve_with_floors(gram, right, [0.0, 0.0, 0.0])
    if found is None:
        raise EngineError("the engine's steps do not tell the step model's terms apart")
    a, b, g = (value * scale for value, scale in zip(found, _SCALES, strict=True))
    return StepModel(a, b, g)
