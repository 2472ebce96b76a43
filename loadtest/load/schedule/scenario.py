"""Complete loads by name: requests, rate, duration. A TOML file describes others."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cluster.errors import SettingsError, plain_reason
from cluster.nearest import did_you_mean
from loadtest.load.schedule.arrivals import Pattern
from loadtest.load.schedule.kinds import KINDS, RequestKind
from loadtest.load.schedule.lengths import Fixed, recorded
from loadtest.traces import trace_file
from penstock.values.slo import ClassSlo

MOST_RATE = 1_000_000.0
"""Highest rate in requests per second.

No generator sends more, and above some number no time passes between requests.
"""
MOST_S = 366 * 86_400.0
"""Longest duration in seconds. No real test lasts longer, and timers overflow at some length."""
MIXABLE = tuple(name for name in KINDS if name != "trace")
_CHAT: Mapping[str, float] = {"chat": 1.0}


@dataclass(frozen=True, slots=True)
class Scenario:
    """Load. The same scenario sends the same requests at the same times."""

    name: str
    text: str = ""
    arrivals: Pattern = field(default_factory=Pattern)
    rate: float = 2.0
    """Requests per second; with a pattern that has levels, the rate of level 1. A trace has its own times."""
    duration_s: float = 60.0
    mix: Mapping[str, float] = field(default_factory=lambda: _CHAT)
    """Weight of each kind of request."""
    seed: int = 1
    warmup_s: float = 0.0
    """Seconds at the start. Requests due in them are sent and not counted."""
    trace: str = ""
    """Recorded load to replay. It has times and lengths."""
    scale_rate: float = 1.0
    """Factor by which a trace is sped up."""
    lengths: str = ""
    """File with recorded lengths for all kinds."""
    prompt_tokens: int | None = None
    """Length of all prompts. It goes with `output_tokens`."""
    output_tokens: int | None = None
    slo_ttft_s: float | None = None
    """SLO for the TTFT that replaces those of the kinds."""
    slo_itl_s: float | None = None
    """SLO for the 95th percentile of a request's own gaps. It replaces those of the kinds."""

    def __post_init__(self) -> None:
        """Check what types don't.

        Raises:
            SettingsError: a value is out of range or contradicts another one.
        """
        for name, most in (("rate", MOST_RATE), ("duration_s", MOST_S), ("scale_rate", math.inf)):
            _check_above_zero(name, getattr(self, name), most)
        if not 0 <= self.warmup_s < self.duration_s:
            raise SettingsError(f"warmup_s must be from 0 to below duration_s {self.duration_s:g}: {self.warmup_s:g}")
        unknown = set(self.mix) - set(MIXABLE)
        if unknown or not self.mix:
            raise SettingsError(
                f"mix must name some of {', '.join(MIXABLE)}, got {', '.join(sorted(unknown)) or 'none'}"
            )
        for kind, weight in self.mix.items():
            _check_above_zero(f"mix.{kind}", weight)
        if (self.arrivals.name == "trace") != bool(self.trace):
            raise SettingsError(
                f"arrivals 'trace' and a trace file go together, got {self.arrivals} and {self.trace!r}"
            )
        if (self.prompt_tokens is None) != (self.output_tokens is None):
            raise SettingsError("prompt_tokens and output_tokens must be given together")
        for name in ("prompt_tokens", "output_tokens", "slo_ttft_s", "slo_itl_s"):
            if getattr(self, name) is not None:
                _check_above_zero(name, getattr(self, name))

    def kind(self, name: str) -> RequestKind:
        """Return a kind with the values of this scenario."""
        kind = KINDS[name]
        if self.prompt_tokens is not None and self.output_tokens is not None:
            kind = replace(kind, lengths=Fixed(self.prompt_tokens, self.output_tokens))
        elif self.lengths:
            kind = replace(kind, lengths=recorded(Path(self.lengths)))
        ttft = kind.slo.ttft_p99_s if self.slo_ttft_s is None else self.slo_ttft_s
        itl = kind.slo.itl_p95_s if self.slo_itl_s is None else self.slo_itl_s
        return replace(kind, slo=ClassSlo(ttft, itl))


def _check_above_zero(name: str, value: float, most: float = math.inf) -> None:
    if value > most and math.isfinite(value):
        raise SettingsError(f"{name} must be a number of at most {most:.0f}, got {value!r}")
    if not math.isfinite(value) or value <= 0:
        raise SettingsError(f"{name} must be a number above 0, got {value!r}")


SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        # Enough requests that one late message does not break a goodput of 0.99.
        Scenario("smoke", "200 short requests", rate=20.0, duration_s=10, prompt_tokens=32, output_tokens=16),
        Scenario("chat", "interactive conversations, Poisson"),
        Scenario("rag", "long prompts that carry documents", mix={"rag": 1.0}, rate=0.5),
        Scenario("batch", "work that is not urgent", mix={"batch": 1.0}),
        Scenario("agents", "long shared beginnings, short answers", mix={"agent": 1.0}),
        Scenario("mixed", "all kinds together", mix={"chat": 6, "rag": 1, "batch": 2, "agent": 3}, rate=3.0),
        Scenario("bursts", "chat that comes in bursts", Pattern.parse("mmpp"), duration_s=180),
        Scenario("steps", "chat, five levels up to five times the rate", Pattern.parse("step:factor=5,levels=5"), 1.0),
        Scenario("spike", "chat with five times the rate for a while", Pattern.parse("spike"), duration_s=120),
        Scenario("diurnal", "a day's wave of all kinds in ten minutes", Pattern.parse("diurnal"), 3.0, 600.0,
                 {"chat": 6, "rag": 1, "batch": 2, "agent": 3}),
    )
}  # fmt: skip


def find_scenario(name: str) -> Scenario:
    """Return a scenario by its name, or read it from a TOML file.

    Raises:
        SettingsError: there is none, or the file has an unknown field or a wrong value.
    """
    if name in SCENARIOS:
        return SCENARIOS[name]
    path = Path(name)
    if path.suffix != ".toml":
        near = did_you_mean(name, SCENARIOS)
        raise SettingsError(f"scenario must be one of {', '.join(SCENARIOS)}, or a .toml file, got {name!r}{near}")
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"scenario {name} cannot be read: {plain_reason(error)}") from error
    named = {field: _file(fields[field], path.parent) for field in _FILES if isinstance(fields.get(field), str)}
    return scenario_from({"name": path.stem, **fields, **named})


_FILES = ("trace", "lengths")


def _file(name: str, folder: Path) -> str:
    """Return the file that a scenario means: one in its folder, else one in the working folder, or the sample."""
    beside = folder / name
    return str(beside) if name and beside.exists() else trace_file(name)


_TYPES: Mapping[str, type] = {
    "name": str, "text": str, "arrivals": str, "rate": float, "duration_s": float, "mix": dict, "seed": int,
    "warmup_s": float, "trace": str, "scale_rate": float, "lengths": str, "prompt_tokens": int, "output_tokens": int,
    "slo_ttft_s": float, "slo_itl_s": float,
}  # fmt: skip


def scenario_from(fields: Mapping[str, Any]) -> Scenario:
    """Build a scenario from plain values.

    Raises:
        SettingsError: a field is unknown, of a wrong type, or out of range.
    """
    values: dict[str, Any] = {}
    for name, value in fields.items():
        kind = _TYPES.get(name)
        if kind is None:
            raise SettingsError(f"scenario: {name!r} is unknown; known: {', '.join(_TYPES)}")
        _check_type(name, value, kind)
        values[name] = Pattern.parse(value) if name == "arrivals" else value
    for weight in values.get("mix", {}).values():
        _check_type("mix", weight, float)
    if values.get("trace"):
        values.setdefault("arrivals", Pattern.parse("trace"))
    return Scenario(**values)


def _check_type(name: str, value: object, kind: type) -> None:
    fits = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
    if not fits or isinstance(value, bool):
        raise SettingsError(f"scenario: {name} must be a {_WORDS[kind]}, got {value!r}")


_WORDS: Mapping[type, str] = {str: "text", float: "number", int: "whole number", dict: "table of numbers"}


def scenario_fields(scenario: Scenario) -> dict[str, Any]:
    """Return plain values for `scenario_from`, without empty ones."""
    values = {name: getattr(scenario, name) for name in _TYPES}
    values |= {"arrivals": str(scenario.arrivals), "mix": dict(scenario.mix)}
    return {name: value for name, value in values.items() if value is not None}
