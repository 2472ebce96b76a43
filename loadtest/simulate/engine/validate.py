"""Comparison of the simulated engine with a recorded run of a real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from loadtest.simulate.engine.recorded import RecordedRun
from loadtest.simulate.engine.replay import Replay, replay
from loadtest.simulate.engine.steps import StepTimes

Column: TypeAlias = npt.NDArray[np.float64]
_START = StepTimes(0.015, 80e-6, 0.08e-6)
_STAGES = (0.5, 0.3, 0.15)
"""Parts of the way to each new model that are gone. The schedule moves with the model, so the whole way may oscillate.
Near the highest load that an engine carries, even half of it does. Each stage begins at the best model so far, because
the end of the previous stage depends on the last bits of a processor's sums."""
_STEPS_PER_STAGE = 12


@dataclass(frozen=True, slots=True)
class Errors:
    """Signed errors of a prediction, as fractions of the measured value. Positive is too slow."""

    ttft_mean_error: float
    ttft_p99_error: float
    e2e_mean_error: float
    e2e_p99_error: float
    ttft_request_error: float
    """Mean of the absolute errors of single requests."""
    e2e_request_error: float


def fit(run: RecordedRun, first: int, last: int) -> StepTimes:
    """Fit the step model to the requests `first` to `last` (from 1, both included) of a run.

    All requests are simulated, because earlier ones delay later ones. The time of a step is linear in the model. So
    with the schedule of one model, the next model is a least-squares fit. That is repeated, and the best one is kept.
    Where the KV cache is always full, the cost of context cannot be told from the fixed cost of a step. It may come out
    as 0.
    """
    chosen = np.arange(first - 1, last)
    real = _measured(run, chosen)
    times = best = _START
    best_misfit = float("inf")
    for step in _STAGES:
        times = best
        for _ in range(_STEPS_PER_STAGE):
            done = replay(run.trace, run.engine, times)
            predicted = _predicted(run, done, chosen)
            misfit = float(
                np.abs(predicted.e2e / real.e2e - 1).mean() + np.abs(predicted.ttft - real.ttft).sum() / real.ttft.sum()
            )
            if misfit < best_misfit:
                best, best_misfit = times, misfit
            features, seconds = _spans(done, chosen, real)
            found = _not_negative(features / seconds[:, None], np.ones(len(seconds)))
            old = (times.base_s, times.per_token_s, times.per_kv_token_s)
            times = StepTimes(*(was + step * (float(now) - was) for was, now in zip(old, found, strict=True)))
    return best


def errors(run: RecordedRun, times: StepTimes, scored: Sequence[int]) -> Errors:
    """Predict the whole run and score some of its requests, given by their places from 0."""
    chosen = np.array(scored, dtype=int)
    real, predicted = _measured(run, chosen), _predicted(run, replay(run.trace, run.engine, times), chosen)

    def of(figure: Callable[[Column], Any], name: str) -> float:
        return float(figure(getattr(predicted, name)) / figure(getattr(real, name)) - 1)

    return Errors(
        ttft_mean_error=of(np.mean, "ttft"),
        ttft_p99_error=of(_p99, "ttft"),
        e2e_mean_error=of(np.mean, "e2e"),
        e2e_p99_error=of(_p99, "e2e"),
        ttft_request_error=float(np.mean(np.abs(predicted.ttft / real.ttft - 1))),
        e2e_request_error=float(np.mean(np.abs(predicted.e2e / real.e2e - 1))),
    )


@dataclass(frozen=True, slots=True)
class _Times:
    """Times of some requests, each from its arrival."""

    ttft: Column
    e2e: Column


def _measured(run: RecordedRun, chosen: npt.NDArray[np.int_]) -> _Times:
    arrival = np.array([request.arrival_s for request in run.trace])
    return _Times((np.array(run.first_token_s) - arrival)[chosen], (np.array(run.last_token_s) - arrival)[chosen])


def _predicted(run: RecordedRun, done: Replay, chosen: npt.NDArray[np.int_]) -> _Times:
    arrival = np.array([request.arrival_s for request in run.trace])
    first = np.array([item.first_token_at for item in done.items], dtype=float)
    last = np.array([item.last_token_at for item in done.items])
    return _Times((first - arrival)[chosen], (last - arrival)[chosen])


def _p99(values: Column) -> float:
    return float(np.percentile(values, 99))


def _spans(done: Replay, chosen: npt.NDArray[np.int_], real: _Times) -> tuple[Column, Column]:
    """Return the steps, tokens and context within each request's wait and decode, and their measured seconds."""
    seconds, ends = np.asarray(done.log.seconds), np.asarray(done.ends)
    moments = np.column_stack([ends - seconds, ends]).ravel()
    items = [done.items[place] for place in chosen]
    arrival = np.array([item.arrived_at for item in items])
    first = np.array([item.first_token_at for item in items], dtype=float)
    last = np.array([item.last_token_at for item in items])
    columns = []
    for amount in (np.ones(len(seconds)), np.asarray(done.log.tokens), np.asarray(done.log.kv_tokens)):
        total = np.cumsum(amount)
        course = np.column_stack([total - amount, total]).ravel()
        at_arrival, at_first, at_last = (np.interp(each, moments, course) for each in (arrival, first, last))
        columns.append(np.concatenate([at_first - at_arrival, at_last - at_first]))
    measured = np.concatenate([real.ttft, real.e2e - real.ttft])
    used = measured > 1e-6
    return np.column_stack(columns)[used], measured[used]


def _not_negative(features: Column, target: Column) -> Column:
    """Solve a small least-squares problem with no negative coefficient."""
    kept = list(range(features.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(features[:, kept], target, rcond=None)
        if (found >= 0).all() or len(kept) == 1:
            result = np.zeros(features.shape[1])
            result[kept] = np.maximum(found, 0)
            return result
        del kept[int(np.argmin(found * np.linalg.norm(features[:, kept], axis=0)))]
