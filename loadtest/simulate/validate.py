"""Holds the simulated engine against a recorded run of a real one.

A run is a folder with `requests.jsonl` (input_toks, output_toks, queued_ts, first_token_ts, last_token_ts) and
`meta.json` (engine_kwargs, kv_cache), as LLMServingSim records them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster.errors import TraceError
from cluster.settings import SimSettings
from loadtest.simulate.replay import Replay, replay
from loadtest.simulate.steps import StepTimes
from loadtest.traces import TraceRequest

_START = StepTimes(0.015, 80e-6, 0.08e-6)
_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Is what a real engine did. Times in seconds since the first request was queued."""

    trace: Sequence[TraceRequest]
    first_token_s: Sequence[float]
    last_token_s: Sequence[float]
    engine: SimSettings


@dataclass(frozen=True, slots=True)
class Errors:
    """Are signed errors of a prediction as fractions of what was measured; positive is too slow."""

    ttft_mean_error: float
    ttft_p99_error: float
    e2e_mean_error: float
    e2e_p99_error: float
    ttft_request_error: float
    """Mean of the absolute errors of single requests."""
    e2e_request_error: float


def read_run(folder: Path) -> RecordedRun:
    """Read a recorded run.

    Raises:
        TraceError: a file is missing, or a field is missing or wrong.
    """
    meta = _read(folder / "meta.json")[0]
    rows = _read(folder / "requests.jsonl")
    try:
        rows.sort(key=lambda row: float(row["queued_ts"]))
        start = float(rows[0]["queued_ts"])
        trace = [
            TraceRequest(number, row["queued_ts"] - start, int(row["input_toks"]), int(row["output_toks"]))
            for number, row in enumerate(rows)
        ]
        kwargs, cache = meta["engine_kwargs"], meta["kv_cache"]
        engine = SimSettings(
            kv_tokens=int(cache["num_kv_tokens"]),
            block_size=int(cache["block_size"]),
            max_num_seqs=int(kwargs["max_num_seqs"]),
            max_num_batched_tokens=int(kwargs["max_num_batched_tokens"]),
            max_model_len=int(kwargs["max_model_len"]),
        )
        first = [row["first_token_ts"] - start for row in rows]
        last = [row["last_token_ts"] - start for row in rows]
    except KeyError as error:
        raise TraceError(str(folder), 0, str(error.args[0]), "is missing") from error
    except (TypeError, ValueError, IndexError) as error:
        raise TraceError(str(folder), 0, "", f"is not a recorded run: {error}") from error
    return RecordedRun(trace, first, last, engine)


def fit(run: RecordedRun, first: int, last: int) -> StepTimes:
    """Find the step model from the requests `first` to `last` (from 1, both included) of a run.

    All requests are simulated, as later ones hold earlier ones up. What a step costs is linear in the model, so with the
    schedule that one model gives, the next one is a least-squares fit; that is repeated until both agree.
    """
    times = best = _START
    best_error = float("inf")
    chosen = slice(first - 1, last)
    for _ in range(_ROUNDS):
        done = replay(run.trace, run.engine, times)
        error = _misfit(run, done, chosen)
        if error < best_error:
            best, best_error = times, error
        features, measured = _spans(run, done, chosen)
        found = _not_negative(features / measured[:, None], np.ones(len(measured)))
        # Half a step: the schedule moves with the model, and full steps may swing.
        base, token, kv = (0.5 * (old + new) for old, new in zip(_numbers(times), found, strict=True))
        times = StepTimes(float(base), float(token), float(kv))
    return best


def errors(run: RecordedRun, times: StepTimes, first: int, last: int) -> Errors:
    """Predict the whole run and score the requests `first` to `last` (from 1, both included)."""
    done = replay(run.trace, run.engine, times)
    chosen = slice(first - 1, last)
    arrival = np.array([request.arrival_s for request in run.trace])[chosen]
    ttft = np.array([item.first_token_at for item in done.items])[chosen] - arrival
    e2e = np.array([item.last_token_at for item in done.items])[chosen] - arrival
    real_ttft, real_e2e = np.array(run.first_token_s)[chosen] - arrival, np.array(run.last_token_s)[chosen] - arrival

    def of(predicted: float, real: float) -> float:
        return float(predicted / real - 1)

    return Errors(
        of(ttft.mean(), real_ttft.mean()),
        of(np.percentile(ttft, 99), np.percentile(real_ttft, 99)),
        of(e2e.mean(), real_e2e.mean()),
        of(np.percentile(e2e, 99), np.percentile(real_e2e, 99)),
        float(np.mean(np.abs(ttft / real_ttft - 1))),
        float(np.mean(np.abs(e2e / real_e2e - 1))),
    )


def _spans(run: RecordedRun, done: Replay, chosen: slice) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return what each request's wait and decode took of steps, tokens and context, and how long they really were."""
    seconds, ends = np.asarray(done.log.seconds), np.asarray(done.ends)
    moments = np.column_stack([ends - seconds, ends]).ravel()
    arrival = np.array([request.arrival_s for request in run.trace])[chosen]
    first = np.array([item.first_token_at for item in done.items])[chosen]
    last = np.array([item.last_token_at for item in done.items])[chosen]
    columns = []
    for amount in (np.ones(len(seconds)), np.asarray(done.log.tokens), np.asarray(done.log.kv_tokens)):
        total = np.cumsum(amount)
        course = np.column_stack([total - amount, total]).ravel()
        at_arrival, at_first, at_last = (np.interp(each, moments, course) for each in (arrival, first, last))
        columns.append(np.concatenate([at_first - at_arrival, at_last - at_first]))
    real_first, real_last = np.array(run.first_token_s)[chosen], np.array(run.last_token_s)[chosen]
    measured = np.concatenate([real_first - arrival, real_last - real_first])
    used = measured > 1e-6
    return np.column_stack(columns)[used], measured[used]


def _not_negative(features: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Solve a small least-squares problem with no negative coefficient."""
    kept = list(range(features.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(features[:, kept], target, rcond=None)
        if (found >= 0).all() or len(kept) == 1:
            result = np.zeros(features.shape[1])
            result[kept] = np.maximum(found, 0)
            return result
        del kept[int(np.argmin(found * np.linalg.norm(features[:, kept], axis=0)))]


def _misfit(run: RecordedRun, done: Replay, chosen: slice) -> float:
    last = np.array([item.last_token_at for item in done.items])[chosen]
    first = np.array([item.first_token_at for item in done.items])[chosen]
    arrival = np.array([request.arrival_s for request in run.trace])[chosen]
    real_first, real_last = np.array(run.first_token_s)[chosen], np.array(run.last_token_s)[chosen]
    e2e = np.abs((last - arrival) / (real_last - arrival) - 1).mean()
    return float(e2e + np.abs(first - real_first).mean() / (real_first - arrival).mean())


def _numbers(times: StepTimes) -> tuple[float, float, float]:
    return times.base_s, times.per_token_s, times.per_kv_token_s


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        found = [json.loads(line) for line in text.splitlines() if line.strip()] if path.suffix == ".jsonl" else None
        return [json.loads(text)] if found is None else found
    except OSError as error:
        raise TraceError(str(path), 0, "", error.strerror or str(error)) from error
    except ValueError as error:
        raise TraceError(str(path), 0, "", f"is no JSON: {error}") from error
