"""Predictions and what later happened: how far off they were, and how often the ranges held.

Both are lines of one JSON file in the state folder. An observation is a dict with any of ttft_s: {mean, p50, p99},
itl_s: {mean, p95} and tokens_per_s. A load test's JSON report has them at its top level or under "summary".
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import SettingsError, plain_reason

FILE = "plans.jsonl"
LAST = 20
"""Observations that the rolling error covers."""
FIGURES = ("ttft_mean_s", "ttft_p99_s", "itl_mean_s", "itl_p95_s", "tokens_per_s")
_PLACES = {
    "ttft_mean_s": ("ttft_s", "mean"),
    "ttft_p99_s": ("ttft_s", "p99"),
    "itl_mean_s": ("itl_s", "mean"),
    "itl_p95_s": ("itl_s", "p95"),
}
_MERGED = {"itl_mean_s": ("tpot_s", "mean"), "itl_p95_s": ("", "")}
ENOUGH = 3
"""Observations that say something of an engine."""
OTHER_LOAD = 2.0
"""Factor on the planned rate or mean length from which a report is of another load."""
MERGED = 1.05
"""Tokens per message from which gaps between messages no longer stand for gaps between tokens."""


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """Engines that share their errors."""

    model: str
    gpu: str
    tensor_parallel: int
    precision: str = ""
    """Of the weights. Empty in predictions of before it was noted."""
    split: str = ""
    """Split of a replica beside tensor parallelism, in words. Empty without one."""
    measured: str = ""
    """What predictions knew of step times beside what is expected of them: a profile, or a number of points. What load
    tests say of the one knowledge says nothing of the other.
    """

    def __str__(self) -> str:
        gpus = f"{self.tensor_parallel} ({self.split})" if self.split else str(self.tensor_parallel)
        known = f" (by {self.measured})" if self.measured else ""
        return f"{self.model} on {gpus} x {self.gpu}{f', {self.precision}' if self.precision else ''}{known}"


@dataclass(frozen=True, slots=True)
class Shift:
    """What observations say of an engine group beside its prior."""

    itl: float
    """Factor on step times: the median of observed over predicted without any shift."""
    ttft: float
    """The same for the mean time to the first token; that of step times where it was not observed."""
    error: float
    """Mean error of step times that remains with these factors."""
    count: int
    ttft_error: float | None = None
    """The same of the time to the first token; None where that was not observed often enough."""


@dataclass(frozen=True, slots=True)
class FigureReview:
    """Quality of the predictions of one figure."""

    count: int
    median_error: float
    """|predicted - measured| / measured."""
    bias: float
    """Median of predicted / measured - 1."""
    coverage: float
    """Part of the observations within the predicted range."""


class Book:
    """Predictions and observations in a file that is only ever appended to.

    Args:
        folder: the state folder. It is made when something is written.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder.expanduser() / FILE

    def predict(
        self,
        group: EngineGroup,
        load: Mapping[str, Any],
        predicted: Mapping[str, Any],
        now: float | None = None,
        *,
        shifted: tuple[float, float] = (1.0, 1.0),
    ) -> str:
        """Note a prediction. Return its id.

        Args:
            group: of the engine.
            load: that was planned for.
            predicted: ranges of figures.
            now: the time.
            shifted: factors of earlier observations in it, on step times and the first token.
        """
        at = time.time() if now is None else now
        plan_id = f"p{len(self._lines()) + 1}"
        self._add(
            {
                "kind": "prediction",
                "id": plan_id,
                "at": at,
                "model": group.model,
                "gpu": group.gpu,
                "tp": group.tensor_parallel,
                "precision": group.precision,
                "split": group.split,
                "measured": group.measured,
                "shifted": list(shifted),
                "load": dict(load),
                "predicted": dict(predicted),
            }
        )
        return plan_id

    def observe(self, plan_id: str, report: Mapping[str, Any], now: float | None = None) -> dict[str, float]:
        """Note what happened. Return the figures that were found.

        Raises:
            SettingsError: no prediction has this id, or the report has no figure, is of another load or was noted
                before.
        """
        lines = self._lines()
        made = {line["id"]: line for line in lines if line["kind"] == "prediction"}
        if plan_id not in made:
            raise SettingsError(f"observe: no prediction has the id {plan_id!r} in {self._file}")
        _check_load(plan_id, made[plan_id]["load"], report)
        seen = figures_in(report)
        if not seen:
            raise SettingsError(
                "observe: the report has none of ttft_s.mean, ttft_s.p99, itl_s.mean, itl_s.p95, tokens_per_s"
            )
        if any((line["kind"], line["id"], line.get("seen")) == ("observation", plan_id, seen) for line in lines):
            # Counted again it would make the error look smaller than it is.
            raise SettingsError(f"observe: a report with these figures was noted for {plan_id} before")
        at = time.time() if now is None else now
        self._add({"kind": "observation", "id": plan_id, "at": at, "seen": seen})
        return seen

    def review(self) -> dict[EngineGroup, dict[str, FigureReview]]:
        """Return the errors of the last observations, by engine group and figure."""
        predictions = {line["id"]: line for line in self._lines() if line["kind"] == "prediction"}
        pairs: dict[EngineGroup, dict[str, list[tuple[Mapping[str, float], float]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for line in self._lines():
            if line["kind"] != "observation" or line["id"] not in predictions:
                continue
            made = predictions[line["id"]]
            group = _group(made)
            for name, value in line["seen"].items():
                if name in made["predicted"] and value > 0:
                    pairs[group][name].append((made["predicted"][name], value))
        return {
            group: {name: _reviewed(found[-LAST:]) for name, found in figures.items()}
            for group, figures in pairs.items()
        }

    def error(self, group: EngineGroup) -> float | None:
        """Return the rolling error of a group's inter-token latency; None below 3 observations."""
        figure = self.review().get(group, {}).get("itl_mean_s")
        return figure.median_error if figure is not None and figure.count >= ENOUGH else None

    def shift(self, group: EngineGroup) -> Shift | None:
        """Return what observations say of a group; None below 3. Predictions that were shifted count as they would have
        been without.
        """
        predictions = {line["id"]: line for line in self._lines() if line["kind"] == "prediction"}
        ratios: dict[str, list[float]] = {"itl_mean_s": [], "ttft_mean_s": []}
        for line in self._lines():
            made = predictions.get(line["id"]) if line["kind"] == "observation" else None
            if made is None or _group(made) != group:
                continue
            for (name, found), factor in zip(ratios.items(), made.get("shifted", (1.0, 1.0)), strict=True):
                value = line["seen"].get(name)
                if name in made["predicted"] and value and made["predicted"][name]["middle"] > 0:
                    found.append(value / made["predicted"][name]["middle"] * factor)
        itl, ttft = (found[-LAST:] for found in ratios.values())
        if len(itl) < ENOUGH:
            return None
        middle, error = _spread(itl)
        first, first_error = _spread(ttft) if len(ttft) >= ENOUGH else (middle, None)
        return Shift(middle, first, error, len(itl), first_error)

    def _lines(self) -> list[dict[str, Any]]:
        try:
            text = self._file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"state-dir: {self._file} cannot be read: {plain_reason(error)}") from error
        lines = []
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                entry = json.loads(line)
                lines.append({"kind": entry["kind"], "id": entry["id"], **entry})
            except (ValueError, KeyError, TypeError) as error:
                raise SettingsError(f"{self._file}:{number} is no prediction and no observation: {error}") from error
        return lines

    def _add(self, line: Mapping[str, Any]) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise SettingsError(f"state-dir: {self._file} cannot be written: {plain_reason(error)}") from error


def _spread(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the median of ratios, and their mean error about it."""
    middle = statistics.median(ratios)
    return middle, statistics.fmean(abs(each / middle - 1) for each in ratios)


def _group(made: Mapping[str, Any]) -> EngineGroup:
    texts = (made.get(name, "") for name in ("precision", "split", "measured"))
    return EngineGroup(made["model"], made["gpu"], int(made["tp"]), *texts)


def _reviewed(pairs: Sequence[tuple[Mapping[str, float], float]]) -> FigureReview:
    errors = [made["middle"] / value - 1 for made, value in pairs]
    within = sum(made["low"] <= value <= made["high"] for made, value in pairs)
    return FigureReview(
        len(pairs), statistics.median(abs(each) for each in errors), statistics.median(errors), within / len(pairs)
    )


def _merged(data: Mapping[str, Any]) -> bool:
    tokens, messages = data.get("output_tokens"), data.get("messages")
    if not isinstance(tokens, int | float) or not isinstance(messages, int | float):
        return False
    return tokens > MERGED * messages


def _check_load(plan_id: str, planned: Mapping[str, Any], report: Mapping[str, Any]) -> None:
    """Refuse a report of another load, as far as it tells: the difference would look like the planner's error."""
    data = _data(report)
    requests = _number(data.get("requests"))
    if requests is None:
        return
    # A few requests scatter widely.
    most = OTHER_LOAD * (1 + 3 / math.sqrt(requests))
    for name, of, over in (
        ("rate", "requests", "seconds"),
        ("prompt_tokens", "prompt_tokens", "completed"),
        ("output_tokens", "output_tokens", "completed"),
    ):
        part, whole, wanted = _number(data.get(of)), _number(data.get(over)), _number(planned.get(name))
        if part is None or whole is None or wanted is None:
            continue
        sent = part / whole
        if not 1 / most <= sent / wanted <= most:
            raise SettingsError(
                f"observe: the report is not of {plan_id}: its {name} is {sent:.4g}, planned were {wanted:.4g}, and "
                f"from {most:.1f} times as much or as little on it is another load"
            )


def _data(report: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = report.get("summary")
    return inner if isinstance(inner, Mapping) else report


def _number(value: Any) -> float | None:
    """Return a finite number above 0, or None."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return float(value) if known else None


def figures_in(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures that a load test's report has."""
    data = _data(report)
    found: dict[str, Any] = {"tokens_per_s": data.get("tokens_per_s")}
    # Gaps between messages of several tokens are not the predicted gaps between tokens.
    places = {**_PLACES, **_MERGED} if _merged(data) else _PLACES
    for name, (group, field) in places.items():
        each = data.get(group)
        found[name] = each.get(field) if isinstance(each, Mapping) else None
    return {name: number for name, value in found.items() if (number := _number(value)) is not None}
