"""`penstock simulate --validate`: fits an engine to a recorded run, predicts the rest or another run, and reports."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rich.markup import escape

from cluster.errors import SettingsError
from cluster.plural import counted
from cluster.terminal.console import messages, screen
from loadtest.validation.errors import Errors, errors
from loadtest.validation.fit import fit
from loadtest.validation.model import EngineModel, Expected, expect
from loadtest.validation.profiled import profile_of, write_profile
from loadtest.validation.recorded import FilledIn, RecordedRun, read_run
from loadtest.validation.report import error_table, sentences

_FIT = (1, 100)
"""Default part of a run that its own rest is predicted from, in requests."""
_FILLING = tuple(field.name for field in fields(FilledIn))


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model, and where it comes from."""

    expected: Expected
    """What was expected of the predicted run's engine."""
    model: EngineModel
    requests: int
    """Requests of the fit."""
    words: Sequence[str]
    """How the run was read and the model found."""


def run_validate(options: argparse.Namespace, found: Collection[str]) -> int:
    """Fit the engine to a part of a run or to another one, predict what is left, and report the errors. `found` are the
    names of the flags that were given.

    Raises:
        TraceError: a run cannot be read.
        SettingsError: the part is not in the run, nothing is left to predict, or a flag has no effect.
    """
    told = FilledIn(*(getattr(options, name) if name in found else 0 for name in _FILLING))
    run = read_run(Path(options.validate), told)
    # With two runs the flag may be about the other one.
    expected = expect(run, "" if options.gpu is None or (options.fit_on and run.gpu) else options.gpu)
    with messages().status("fitting"):
        fitted, rest = _fit(options, run, expected, told)
        seen = errors(run, expected, fitted.model, rest)
    _print(options, fitted, seen, len(rest))
    if options.save_profile:
        profile = profile_of(run, expected, fitted.model, fitted.requests, seen)
        write_profile(Path(options.save_profile), profile)
        messages().print(f"wrote {escape(options.save_profile)}", highlight=False, soft_wrap=True)
    return 0


def _fit(options: argparse.Namespace, run: RecordedRun, expected: Expected, told: FilledIn) -> tuple[Fitted, list[int]]:
    """Return the model, and the places of the requests to predict."""
    count = len(run.trace)
    if options.fit_on:
        other = read_run(Path(options.fit_on), told)
        _check_told(told, run, other)
        theirs = expect(other, "" if options.gpu is None or (other.gpu and not run.gpu) else options.gpu)
        first, last = _part(options.fit or (1, len(other.trace)), len(other.trace))
        model = fit(other, theirs, first, last)
        words = [*sentences(run, expected), f"fitted on {counted(last - first + 1, 'request')} of {options.fit_on}"]
        if not expected.same_engine(theirs):
            if not (expected.known and theirs.known):
                raise SettingsError(
                    "fit-on must be a run of the same engine where one of the two is not known to the planner: "
                    f"{options.fit_on} is held to {theirs.why}; {options.validate} is held to {expected.why}"
                )
            model = expected.model.scaled(model, theirs.model)
            words.append(f"carried over in proportion from {theirs.why}")
        return Fitted(expected, model, last - first + 1, words), list(range(count))
    _check_told(told, run)
    first, last = _part(options.fit or _FIT, count)
    if last - first + 1 >= count:
        raise SettingsError(
            f"fit must leave some of the run's {counted(count, 'request')} to predict, got {first}-{last}"
        )
    rest = [place for place in range(count) if not first - 1 <= place < last]
    fitted = Fitted(expected, fit(run, expected, first, last), last - first + 1, sentences(run, expected))
    return fitted, rest


def _check_told(told: FilledIn, *runs: RecordedRun) -> None:
    """Refuse flags that fill in nothing."""
    for name in _FILLING:
        if getattr(told, name) and not any(getattr(run.told, name) for run in runs):
            raise SettingsError(
                f"{name.replace('_', '-')} has no effect: the run tells its own, got {getattr(told, name)}"
            )


def _part(part: tuple[int, int], count: int) -> tuple[int, int]:
    if part[1] > count:
        raise SettingsError(
            f"fit must leave some of the run's {counted(count, 'request')} to predict, got {part[0]}-{part[1]}"
        )
    return part


def _print(options: argparse.Namespace, fitted: Fitted, seen: Errors, rest: int) -> None:
    model = _shown(fitted.model)
    if options.json:
        figures = {name: None if _unknown(value) else value for name, value in asdict(seen).items()}
        fields = {"requests": rest, **figures, "model": model, "expected": _shown(fitted.expected.model)}
        sys.stdout.write(json.dumps({**fields, "notes": list(fitted.words)}, indent=2) + "\n")
        return
    title = f"{counted(fitted.requests, 'request')} fitted, {rest} predicted"
    screen().print(error_table(seen, title))
    screen().print(", ".join(f"{name} {value:.4g}" for name, value in model.items()), highlight=False)
    for each in fitted.words:
        screen().print(f"[dim]{escape(each)}[/]", highlight=False, soft_wrap=True)


def _unknown(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _shown(model: EngineModel) -> dict[str, float]:
    steps = model.steps
    shown = {
        "base_ms": 1e3 * steps.a,
        "per_token_us": 1e6 * steps.b,
        "per_kv_token_us": 1e6 * steps.g,
        "overhead_ms": 1e3 * model.overhead_s,
        "overhead_steps": model.overhead_steps,
    }
    return {**shown, "experts_ms": 1e3 * steps.m} if steps.experts else shown
