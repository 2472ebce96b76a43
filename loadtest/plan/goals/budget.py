"""What a budget serves: the highest rate of a load that so many replicas hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from cluster.control.step_model import Shape
from cluster.errors import SettingsError
from loadtest.plan.option import USE, Engine, Impossible, Operation, Promise, operate
from loadtest.plan.search import Candidate
from loadtest.plan.traffic import Load
from loadtest.plan.trial import production, try_out

FINE = 0.05
"""Part of the rate below which the search stops."""
_TRIES = 6


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """What an engine serves for a budget."""

    candidate: Candidate
    rate: float
    """Requests per second that hold the SLO with the promise's confidence."""
    shape: Shape

    def as_json(self) -> dict[str, Any]:
        """Return the data of `--json`."""
        engine = self.candidate.engine
        return {
            "engine": engine.name,
            "replicas": self.candidate.replicas,
            "gpus": self.candidate.gpus,
            "cost_per_hour": self.candidate.hourly,
            "rate": self.rate,
            "output_tokens_per_s": self.rate * self.shape.output_tokens,
            "batch_limit": self.candidate.operation.batch,
            "step_tokens": self.candidate.operation.step_tokens,
            "source": engine.source,
            "fallback": engine.fallback,
        }


def affordable(options: Iterable[Engine], load: Load, promise: Promise, budget: float) -> list[Candidate]:
    """Return what a budget buys of each engine, the one with the highest rate on paper first.

    Raises:
        SettingsError: an engine has no price.
    """
    found = []
    for engine in options:
        if not engine.price:
            raise SettingsError(f"budget: {engine.gpu} has no price above 0; give --price {engine.gpu}=NUMBER")
        replicas = int(budget / (engine.price * engine.gpus) + 1e-9)
        operation = operate(engine.at(promise.confidence), load, promise)
        if replicas and isinstance(operation, Operation):
            found.append(Candidate(engine, operation, replicas))
    return sorted(found, key=lambda each: -_paper(each))


def _paper(candidate: Candidate) -> float:
    return USE * candidate.replicas * candidate.engine.lanes * candidate.operation.rate


def why_not(options: Iterable[Engine], load: Load, promise: Promise, budget: float) -> list[str]:
    """Return why engines are of no use for a budget."""
    told = []
    for engine in options:
        found = operate(engine.at(promise.confidence), load, promise)
        if isinstance(found, Impossible):
            told.append(f"{engine.name}: {found.why}")
        elif engine.price and engine.price * engine.gpus > budget:
            told.append(f"{engine.name}: one replica costs {engine.price * engine.gpus:g} per hour")
    return told


def served(
    candidate: Candidate, load: Load, promise: Promise, *, seed: int = 1, tell: Callable[[str], None] = lambda _: None
) -> BudgetPlan:
    """Search for the highest rate that the candidate's replicas hold with the promise's confidence."""
    careful = candidate.engine.at(promise.confidence)

    def holds(rate: float) -> bool:
        tell(f"{candidate.engine.name}: {rate:.3g} requests/s")
        at = replace(load, rate=rate)
        fast = production(careful, at, promise)
        seen = try_out(careful, candidate.operation, at, promise, candidate.replicas, seed=seed, fast=fast)
        return seen.attainment >= promise.attainment

    high = candidate.replicas * candidate.engine.lanes * candidate.operation.rate
    low, at = 0.0, _paper(candidate)
    for _ in range(_TRIES):
        if holds(at):
            low = at
        else:
            high = at
        if high - low <= FINE * high:
            break
        at = (low + high) / 2
    return BudgetPlan(candidate, low, load.shape)
