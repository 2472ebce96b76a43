"""Offline work by a deadline: as many replicas as finish in time, and the cheapest engine for it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from loadtest.plan.option import Engine, Operation, Promise, operate
from loadtest.plan.search import Candidate, Rejected
from loadtest.plan.traffic import Load
from loadtest.plan.trial import try_out

PATIENT = Promise(ttft_p99_s=1e6, itl_p95_s=math.inf, attainment=0.99, tpot_s=math.inf)
"""The promise of work that nobody waits for."""
FULL = 1.5
"""Rate of a trial over what a replica takes, so that it is never idle."""


@dataclass(frozen=True, slots=True)
class OfflinePlan:
    """Replicas that finish so many requests in time."""

    candidate: Candidate
    seconds: float
    """Time that they take, with an engine as slow as the confidence allows."""
    tokens_per_s: float
    """Output tokens of all replicas."""
    cost: float | None
    """Of the whole work; None without a price."""

    def as_json(self) -> dict[str, Any]:
        """Return the data of `--json`."""
        engine = self.candidate.engine
        return {
            "engine": engine.name,
            "replicas": self.candidate.replicas,
            "gpus": self.candidate.gpus,
            "hours": self.seconds / 3600,
            "output_tokens_per_s": self.tokens_per_s,
            "cost": self.cost,
            "batch_limit": self.candidate.operation.batch,
            "step_tokens": self.candidate.operation.step_tokens,
            "source": engine.source,
            "fallback": engine.fallback,
        }


def offline(
    options: Iterable[Engine], load: Load, requests: int, deadline_s: float, confidence: float
) -> tuple[list[OfflinePlan], list[Rejected]]:
    """Plan for every engine, the cheapest work first, or that of the fewest accelerators where a price is missing.

    Args:
        options: engines.
        load: its lengths count, not its rate.
        requests: how many.
        deadline_s: seconds for all of them.
        confidence: probability that they are done in time.
    """
    found: list[OfflinePlan] = []
    lost: list[Rejected] = []
    for engine in options:
        careful = engine.at(confidence)
        operation = operate(careful, load, PATIENT)
        if not isinstance(operation, Operation):
            lost.append(Rejected(engine.name, operation.why))
            continue
        made = _planned(engine, operation, load, requests, deadline_s, confidence)
        if made is None:
            lost.append(Rejected(engine.name, f"the deadline of {deadline_s:g} s is shorter than a request"))
        else:
            found.append(made)
    priced = all(each.cost is not None for each in found)
    found.sort(key=lambda each: ((each.cost or 0.0) if priced else each.candidate.gpus, each.candidate.gpus))
    return found, lost


def _planned(
    engine: Engine, operation: Operation, load: Load, requests: int, deadline_s: float, confidence: float
) -> OfflinePlan | None:
    careful = engine.at(confidence)
    # A trial with more than a replica takes shows what it really completes.
    busy = replace(load, rate=FULL * operation.rate * engine.lanes)
    seen = try_out(careful, operation, busy, PATIENT, 1)
    rate = seen.tokens_per_s / load.shape.output_tokens
    # The last requests leave the batch one by one: half a lifetime of a full batch is lost at the end.
    tail_s = operation.batch / operation.rate / 2
    if tail_s >= deadline_s or rate <= 0:
        return None
    replicas = max(1, math.ceil(requests / (rate * (deadline_s - tail_s))))
    seconds = requests / (rate * replicas) + tail_s
    candidate = Candidate(engine, operation, replicas)
    cost = None if candidate.hourly is None else candidate.hourly * seconds / 3600
    return OfflinePlan(candidate, seconds, replicas * seen.tokens_per_s, cost)
