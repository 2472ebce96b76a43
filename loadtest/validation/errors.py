"""Errors of a prediction of a recorded run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.validation.fit import Column, measured, predicted, replayed
from loadtest.validation.model import EngineModel, Expected
from loadtest.validation.recorded import RecordedRun

UNQUEUED_S = 0.02
"""Longest wait before the first step of a request that counts as one without a queue."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Signed errors of a prediction, as fractions of the measured value. Positive is too slow. NaN stands for what a
    run does not tell.
    """

    ttft_mean_error: float
    ttft_p99_error: float
    itl_mean_error: float
    """Of all gaps between tokens together. A run does not tell single ones."""
    tpot_mean_error: float
    """Of each request's mean gap between tokens."""
    tpot_p99_error: float
    e2e_mean_error: float
    e2e_p99_error: float
    ttft_request_error: float
    """Mean of the absolute errors of single requests."""
    tpot_request_error: float
    e2e_request_error: float
    unqueued: int = 0
    """Requests that waited for no slot."""
    unqueued_ttft_mean_error: float = math.nan
    """Of these requests. A queue hides what the engine itself does to a first token."""


def errors(run: RecordedRun, expected: Expected, model: EngineModel, scored: Sequence[int]) -> Errors:
    """Predict the whole run and score some of its requests, given by their places from 0."""
    chosen = np.array(scored, dtype=int)
    real, told = measured(run, chosen), predicted(run, replayed(run, expected, model), model, chosen)
    several = real.outputs > 1
    tpot = [(each.decode / np.maximum(1.0, each.outputs - 1))[several] for each in (real, told)]
    gaps = [float(each.decode[several].sum()) for each in (real, told)]
    free = _unqueued(run, chosen)
    return Errors(
        ttft_mean_error=_of(np.mean, real.ttft, told.ttft),
        ttft_p99_error=_of(_p99, real.ttft, told.ttft),
        itl_mean_error=gaps[1] / gaps[0] - 1 if several.any() else math.nan,
        tpot_mean_error=_of(np.mean, *tpot),
        tpot_p99_error=_of(_p99, *tpot),
        e2e_mean_error=_of(np.mean, real.e2e, told.e2e),
        e2e_p99_error=_of(_p99, real.e2e, told.e2e),
        ttft_request_error=_single(real.ttft, told.ttft),
        tpot_request_error=_single(*tpot),
        e2e_request_error=_single(real.e2e, told.e2e),
        unqueued=int(free.sum()),
        unqueued_ttft_mean_error=_of(np.mean, real.ttft[free], told.ttft[free]),
    )


def _unqueued(run: RecordedRun, chosen: Any) -> Any:
    if not run.scheduled_s:
        return np.zeros(len(chosen), dtype=bool)
    waited = np.array(run.scheduled_s) - np.array([request.arrival_s for request in run.trace])
    return waited[chosen] < UNQUEUED_S


def _of(figure: Callable[[Column], Any], real: Column, told: Column) -> float:
    return float(figure(told) / figure(real) - 1) if len(real) else math.nan


def _single(real: Column, told: Column) -> float:
    return float(np.mean(np.abs(told / real - 1))) if len(real) else math.nan


def _p99(values: Column) -> float:
    return float(np.percentile(values, 99))
