"""Blend of experts by how right each has been of late."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.forecast.experts import PRESENT


@dataclass(frozen=True, slots=True)
class BlendRules:
    """Constants of the blend."""

    memory_minutes: float = 4320.0
    """Errors fade over this time."""
    sharpness: float = 16.0
    """Exponent on the inverse of an expert's mean error. The higher it is, the more the best one counts."""
    too_little: float = 1.5
    """Weight of an error that expects too little. Replicas that are missing cost more than some that are idle."""
    enough_minutes: float = 720.0
    """Judged minutes before an expert's error counts in full; until then it is mixed with that of the present."""
    least_weight: float = 0.01
    """Weights below this are left out."""


@dataclass(frozen=True, slots=True)
class ExpertRecord:
    """How right an expert has been."""

    loss: float = 0.0
    """Mean error of the logarithm, of late."""
    bias: float = 0.0
    """Mean of outcome over forecast, as a logarithm."""
    square: float = 0.0
    """Mean of its square."""
    judged: float = 0.0
    """Minutes that the means rest on."""

    def next(self, forecast: float, outcome: float, rules: BlendRules) -> ExpertRecord:
        """Return the record with one more forecast judged."""
        error = math.log(max(outcome, 1e-6) / max(forecast, 1e-6))
        error = max(-2.0, min(2.0, error))
        cost = error * rules.too_little if error > 0 else -error
        judged = min(rules.memory_minutes, self.judged + 1.0)
        part = 1.0 / judged
        return ExpertRecord(
            self.loss + part * (cost - self.loss),
            self.bias + part * (error - self.bias),
            self.square + part * (error * error - self.square),
            judged,
        )

    @property
    def scatter(self) -> float:
        """Standard deviation of that logarithm."""
        return math.sqrt(max(0.0, self.square - self.bias**2))


def weights_of(records: Mapping[str, ExpertRecord], rules: BlendRules) -> dict[str, float]:
    """Return the weights of experts, which add up to 1. Whoever was not judged for long counts like the present."""
    usual = records.get(PRESENT, ExpertRecord())
    if not usual.judged or not usual.loss:
        return {PRESENT: 1.0}
    raw = {}
    for name, record in records.items():
        sure = min(1.0, record.judged / rules.enough_minutes)
        loss = sure * record.loss + (1.0 - sure) * usual.loss
        raw[name] = (usual.loss / max(loss, 1e-9)) ** rules.sharpness * (sure if name != PRESENT else 1.0)
    total = sum(raw.values())
    kept = {name: value / total for name, value in raw.items() if value >= rules.least_weight * total}
    return {name: value / sum(kept.values()) for name, value in kept.items()}


def blended(forecasts: Mapping[str, float], weights: Mapping[str, float]) -> float | None:
    """Return the weighted geometric mean of the forecasts there are; None without any."""
    known = {name: weights.get(name, 0.0) for name in forecasts}
    total = sum(known.values())
    if total <= 0:
        return None
    return math.exp(sum(part * math.log(max(forecasts[name], 1e-6)) for name, part in known.items()) / total)
