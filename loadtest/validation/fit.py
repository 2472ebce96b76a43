"""Fit of an engine's model to a recorded run, held to what is expected of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from loadtest.simulate.engine.replay import EngineLog, Replay, replay
from loadtest.validation.model import EngineModel, Expected
from loadtest.validation.recorded import RecordedRun

Column: TypeAlias = npt.NDArray[np.float64]
_HOLD, _HOLD_LOOSELY = 0.5, 0.002
"""Weight of an error of a constant beside the relative error of a measured time, in units of what is expected of it:
where the engine is known, and where a typical one stands for it."""
_LEAST_S, _LEAST_STEPS = 0.015, 1.0
"""Units of a first token's overhead where none is expected."""
_STAGES = (0.5, 0.3, 0.15)
"""Parts of the way to each new model that are gone. The schedule moves with the model, so the whole way may oscillate.
Near the highest load that an engine carries, even half of it does. Each stage begins at the best model so far, because
the end of the previous stage depends on the last bits of a processor's sums."""
_STEPS_PER_STAGE = 12


@dataclass(frozen=True, slots=True)
class Times:
    """Times of some requests, TTFT and E2E from their arrival."""

    ttft: Column
    e2e: Column
    outputs: Column
    """Output tokens."""

    @property
    def decode(self) -> Column:
        """Seconds from the first to the last token."""
        return self.e2e - self.ttft


def fit(run: RecordedRun, expected: Expected, first: int, last: int) -> EngineModel:
    """Fit the model to the requests `first` to `last` (from 1, both included) of a run.

    All requests are simulated, because earlier ones delay later ones. The time of a step is linear in the model. So
    with the schedule of one model, the next model is a least-squares fit. That is repeated, and the best one is kept. A
    run in which the batch is always full cannot tell the fixed cost of a step from that of context. What is expected of
    the engine then decides.
    """
    chosen = np.arange(first - 1, last)
    real = measured(run, chosen)
    held = np.array(expected.model.values)
    unit = np.maximum(held, 1e-12)
    hold = _HOLD if expected.known else _HOLD_LOOSELY
    unit[3], unit[4] = max(held[3], _LEAST_S), max(held[4], _LEAST_STEPS)
    model = best = expected.model
    best_misfit = float("inf")
    for step in _STAGES:
        model = best
        for _ in range(_STEPS_PER_STAGE):
            done = replayed(run, expected, model)
            seen = predicted(run, done, model, chosen)
            own = np.array(model.values)
            misfit = float(
                np.abs(seen.e2e / real.e2e - 1).mean()
                + np.abs(seen.ttft - real.ttft).sum() / real.ttft.sum()
                + hold * np.square((own - held) / unit).sum() / len(chosen)
            )
            if misfit < best_misfit:
                best, best_misfit = model, misfit
            features, seconds = _spans(done, chosen, real, model)
            found = _held(features / seconds[:, None], held, unit / np.sqrt(hold))
            model = model.with_values(tuple(float(each) for each in own + step * (found - own)))
    return best


def replayed(run: RecordedRun, expected: Expected, model: EngineModel) -> Replay:
    """Simulate a run."""
    return replay(run.trace, expected.limits(run.engine), model.times, expected.lanes)


def measured(run: RecordedRun, chosen: npt.NDArray[np.int_]) -> Times:
    """Return what was measured of some requests."""
    arrival = np.array([request.arrival_s for request in run.trace])
    return Times(
        (np.array(run.first_token_s) - arrival)[chosen],
        (np.array(run.last_token_s) - arrival)[chosen],
        _outputs(run)[chosen],
    )


def predicted(run: RecordedRun, done: Replay, model: EngineModel, chosen: npt.NDArray[np.int_]) -> Times:
    """Return what a simulation says of some requests. Their first token comes later by the overhead, and so do all
    others.
    """
    arrival = np.array([request.arrival_s for request in run.trace])
    first = np.array([item.first_token_at for item in done.items], dtype=float)
    last = np.array([item.last_token_at for item in done.items])
    around = model.overhead_s + model.overhead_steps * _step_s(done)
    return Times((first + around - arrival)[chosen], (last + around - arrival)[chosen], _outputs(run)[chosen])


def _outputs(run: RecordedRun) -> Column:
    return np.array([request.output_tokens for request in run.trace], dtype=float)


def _step_s(done: Replay) -> Column:
    """Return the mean seconds between the tokens of each request; of one with a single token the mean of all steps."""
    usual = float(np.mean(np.concatenate([np.asarray(each.log.seconds) for each in done.engines])))
    return np.array(
        [
            (item.last_token_at - (item.first_token_at or 0.0)) / (item.request.output_tokens - 1)
            if item.request.output_tokens > 1
            else usual
            for item in done.items
        ]
    )


def _spans(done: Replay, chosen: npt.NDArray[np.int_], real: Times, model: EngineModel) -> tuple[Column, Column]:
    """Return what each request's wait and decode have of every constant, and their measured seconds."""
    experts = model.steps.experts
    arrival = np.array([item.arrived_at for item in done.items])
    first = np.array([item.first_token_at for item in done.items], dtype=float)
    last = np.array([item.last_token_at for item in done.items])
    served = np.array(done.served_by)
    width = len(model.values)
    wait, decode = (np.zeros((len(done.items), width)) for _ in range(2))
    wait[:, 3], wait[:, 4] = 1.0, _step_s(done)
    for rank, engine in enumerate(done.engines):
        ours = served == rank
        if not ours.any():
            continue
        tokens = np.asarray(engine.log.tokens, dtype=float)
        amounts = [np.ones(len(tokens)), tokens, np.asarray(engine.log.kv_tokens, dtype=float)]
        places = [0, 1, 2]
        if experts is not None:
            amounts.append(1.0 - (1.0 - experts.active / experts.total) ** tokens)
            places.append(5)
        moments = _moments(engine)
        for place, amount in zip(places, amounts, strict=True):
            total = np.cumsum(amount)
            course = np.column_stack([total - amount, total]).ravel()
            at_arrival, at_first, at_last = (np.interp(each[ours], moments, course) for each in (arrival, first, last))
            wait[ours, place], decode[ours, place] = at_first - at_arrival, at_last - at_first
    seconds = np.concatenate([real.ttft, real.decode])
    used = seconds > 1e-6
    return np.concatenate([wait[chosen], decode[chosen]])[used], seconds[used]


def _moments(engine: EngineLog) -> Column:
    seconds, ends = np.asarray(engine.log.seconds), np.asarray(engine.ends)
    return np.column_stack([ends - seconds, ends]).ravel()


def _held(features: Column, held: Column, unit: Column) -> Column:
    """Solve a least-squares problem to the target 1 with no negative constant. `unit` is the distance from `held` that
    weighs as much as a relative error of 1.
    """
    free = list(range(len(held)))
    result = np.zeros(len(held))
    while free:
        rows = np.concatenate([features[:, free], np.diag(1.0 / unit)[:, free]])
        target = np.concatenate([np.ones(len(features)), held / unit])
        # In these units, because the constants differ by many orders of magnitude.
        found, *_ = np.linalg.lstsq(rows * unit[free], target, rcond=None)
        found = found * unit[free]
        if (found >= 0).all():
            result[free] = found
            break
        del free[int(np.argmin(found / unit[free]))]
    return result


def lengths(run: RecordedRun, chosen: Sequence[int]) -> tuple[int, int]:
    """Return the shortest and the longest of some requests, prompt and output together."""
    sizes = [run.trace[place].prompt_tokens + run.trace[place].output_tokens for place in chosen]
    return min(sizes), max(sizes)
