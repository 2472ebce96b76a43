"""Bounds that a run must hold, such as `ttft_p99<500ms,goodput>0.99`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from cluster.errors import SettingsError
from cluster.nearest import did_you_mean

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_UNITS: Mapping[str, float] = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_TIMES = ("ttft", "itl", "tpot", "e2e", "queue", "generator_lag")
_FIGURES = ("mean", "p50", "p90", "p95", "p99", "p99.9", "max")
_PLAIN = (
    "goodput", "error_rate", "rps", "goodput_rps", "tokens_per_s", "requests", "completed", "output_tokens",
)  # fmt: skip
_PARTS = ("goodput", "error_rate")
_FORM = re.compile(
    r"(?:(?P<kind>[a-z]+)\.)?(?P<metric>[a-z0-9_.]+)\s*(?P<operator><=|>=|<|>)\s*(?P<value>[0-9.eE+-]+)\s*"
    r"(?P<unit>[a-z%]*)"
)


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound."""

    text: str
    kind: str
    """Kind of requests. Empty: all."""
    metric: str
    compare: str
    value: float
    """Limit. Times are in seconds."""

    def failure(self, figures: Mapping[str, Any]) -> str | None:
        """Return a sentence if the figures of a run break the bound."""
        scope = figures
        if self.kind:
            scope = figures["by_kind"].get(self.kind, {})
            if not scope:
                return f"{self.text}: the run had no requests of kind {self.kind}"
        found = _look_up(scope, self.metric)
        if found is None:
            return f"{self.text}: nothing was measured"
        if _OPERATORS[self.compare](found, self.value):
            return None
        return f"{self.text}: it was {_shown(self.metric, found)}"


def parse_bounds(text: str) -> list[Bound]:
    """Read bounds, separated by commas.

    A metric is one of goodput, error_rate, rps, goodput_rps, tokens_per_s, requests, completed, output_tokens, or a
    time and a figure of it: ttft_p99, itl_p95, tpot_mean, e2e_max, queue_p50, generator_lag_p99. `chat.ttft_p99` is
    that of one kind. Times need a unit (us, ms, s, min). goodput and error_rate are parts, 0 to 1, or have a %.

    Raises:
        SettingsError: a bound can't be understood; the message names the bound and the reason.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise SettingsError("assert: give at least one bound, such as 'ttft_p99<500ms,goodput>0.99'")
    return [_parse(part) for part in parts]


def check_kinds(bounds: Sequence[Bound], kinds: Sequence[str]) -> None:
    """Check kinds before a long run, so that it does not fail at its end.

    Raises:
        SettingsError: a bound names a kind of requests that the run does not send.
    """
    for bound in bounds:
        if bound.kind and bound.kind not in kinds:
            known = ", ".join(kinds)
            raise SettingsError(f"assert: {bound.text!r}: kind must be one of those sent, {known}, got {bound.kind!r}")


def failures(bounds: Sequence[Bound], figures: Mapping[str, Any]) -> list[str]:
    """Return a sentence for every bound that a run broke."""
    return [sentence for bound in bounds if (sentence := bound.failure(figures)) is not None]


def _parse(text: str) -> Bound:
    match = _FORM.fullmatch(text)
    if match is None:
        raise SettingsError(f"assert: {text!r} must be METRIC, one of < <= > >=, and a number, such as ttft_p99<500ms")
    metric, unit = match["metric"], match["unit"]
    time, _, figure = metric.rpartition("_")
    is_time = time in _TIMES
    if is_time and figure not in _FIGURES:
        raise SettingsError(f"assert: {text!r}: {time} has the figures {', '.join(_FIGURES)}, not {figure!r}")
    if not is_time and metric not in _PLAIN:
        known = (*_PLAIN, *(f"{each}_p99" for each in _TIMES))
        near = did_you_mean(metric, known)
        raise SettingsError(f"assert: {text!r}: unknown metric {metric!r}; known: {', '.join(known)}{near}")
    if match["kind"] and time == "generator_lag":
        raise SettingsError(f"assert: {text!r}: the generator's lag is not kept by kind")
    try:
        value = Decimal(match["value"])
    except InvalidOperation:
        raise SettingsError(f"assert: {text!r}: {match['value']!r} is no number") from None
    return Bound(text, match["kind"] or "", metric, match["operator"], _scaled(text, metric, value, unit, is_time))


def _scaled(text: str, metric: str, value: Decimal, unit: str, is_time: bool) -> float:
    if is_time:
        if unit not in _UNITS:
            raise SettingsError(f"assert: {text!r}: {metric} needs a unit, one of {', '.join(_UNITS)}; got {unit!r}")
        return float(value) * _UNITS[unit]
    if unit and (unit != "%" or metric not in _PARTS):
        raise SettingsError(f"assert: {text!r}: {metric} takes no unit {unit!r}")
    # As decimals: in floating point, 99.9 / 100 is more than 0.999, and 999 requests of 1,000 would not be enough.
    part = float(value / 100 if unit == "%" else value)
    if metric in _PARTS and not 0 <= part <= 1:
        raise SettingsError(f"assert: {text!r}: {metric} is a part, from 0 to 1; got {part:g}")
    return part


def _look_up(scope: Mapping[str, Any], metric: str) -> float | None:
    time, _, figure = metric.rpartition("_")
    if time == "generator_lag":
        found = scope["generator"]["lag_s"][figure]
    elif time in _TIMES:
        found = scope[f"{time}_s"][figure]
    else:
        found = scope[metric]
    return None if found is None else float(found)


def _shown(metric: str, value: float) -> str:
    return f"{1e3 * value:.4g} ms" if metric.rpartition("_")[0] in _TIMES else f"{value:.4g}"
