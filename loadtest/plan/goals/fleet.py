"""Several models on one fleet: accelerators of one kind that serve all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster.errors import SettingsError
from cluster.terminal.values import MOST_RATE
from loadtest.plan.search import SimulatedCandidate
from loadtest.plan.traffic import Load, steady_load


@dataclass(frozen=True, slots=True)
class Also:
    """Another model with its load."""

    model: str
    load: Load


def also(text: str, spread: float, *, vectors: bool = False) -> Also:
    """Read MODEL,RATE,PROMPT,OUTPUT. `vectors`: whether the fleet embeds texts.

    Raises:
        SettingsError: the text has another form, or asks for text where vectors are.
    """
    parts = text.split(",")
    try:
        rate, prompt, output = (float(each) for each in parts[1:])
    except ValueError:
        raise SettingsError(f"also must be MODEL,RATE,PROMPT,OUTPUT such as qwen3-8b,4,500,200, got {text!r}") from None
    if not parts[0].strip():
        raise SettingsError(f"also must begin with a model, got {text!r}")
    if rate > MOST_RATE:
        raise SettingsError(f"also: the rate of {parts[0].strip()} must be at most {MOST_RATE}, got {rate:g}")
    if vectors and output != 1:
        raise SettingsError(
            f"also: embeddings have no output tokens, so OUTPUT must be 1, got {output:g} of {parts[0].strip()}"
        )
    try:
        load = steady_load(rate, prompt, output, spread)
    except SettingsError as error:
        raise SettingsError(f"also: {parts[0].strip()}: {error}") from None
    return Also(parts[0].strip(), replace(load, vectors=vectors))


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """One kind of accelerator for all models."""

    gpu: str
    gpus: int
    hourly: float | None
    parts: Mapping[str, SimulatedCandidate]
    """The best candidate of each model."""

    def as_json(self) -> dict[str, Any]:
        """Return the data of `--json`."""
        return {
            "gpu": self.gpu,
            "gpus": self.gpus,
            "cost_per_hour": self.hourly,
            "models": {
                model: {
                    "engine": each.engine.name,
                    "replicas": each.candidate.replicas,
                    "gpus": each.candidate.gpus,
                    "fallback": each.engine.fallback,
                }
                for model, each in self.parts.items()
            },
        }


def fleets(planned: Mapping[str, Sequence[SimulatedCandidate]]) -> list[FleetPlan]:
    """Return the kinds of accelerators on which every model has a candidate that holds, the cheapest first.

    Args:
        planned: simulated candidates of each model, the best first.
    """
    kinds = [{each.engine.gpu for each in candidates if each.holds} for candidates in planned.values()]
    found = []
    for gpu in sorted(set.intersection(*kinds)) if kinds else ():
        parts = {
            model: next(each for each in candidates if each.holds and each.engine.gpu == gpu)
            for model, candidates in planned.items()
        }
        costs = [each.candidate.hourly for each in parts.values()]
        hourly = None if None in costs else sum(each for each in costs if each is not None)
        found.append(FleetPlan(gpu, sum(each.candidate.gpus for each in parts.values()), hourly, parts))
    priced = all(each.hourly is not None for each in found)
    return sorted(found, key=lambda each: ((each.hourly or 0.0) if priced else each.gpus, each.gpus))
