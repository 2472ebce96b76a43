"""A few factors by which an engine's prior is corrected, fitted to points that were measured on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cluster.control.step_model import Shape
from loadtest.plan.engine.gauss_newton import Guess, fit
from loadtest.plan.engine.steady import steady
from loadtest.plan.engine.steps import StepPrior

_SPREADS = (0.25, 0.3, 0.15, 0.15, 0.6, 0.25)
"""How far each factor may be from 1, as the standard deviation of its logarithm: engines of one version differ less in
reads than in launches, and most in what happens before the first step.
"""
_SCATTER = 0.05
_ROBUST = 0.12


@dataclass(frozen=True, slots=True)
class Correction:
    """Factors on the parts of a prior."""

    floor: float = 1.0
    """On what a step takes however small it is."""
    read: float = 1.0
    """On reads of weights."""
    arithmetic: float = 1.0
    """On the time per computed token."""
    kv: float = 1.0
    """On the time per token of context."""
    overhead: float = 1.0
    """On the seconds of a first token beside its steps."""
    prefill: float = 1.0
    """On a prompt's own arithmetic in the time to its first token."""

    def of(self, start: StepPrior) -> StepPrior:
        """Return the corrected engine."""
        s, first = start.steps, start.first
        return replace(
            start,
            steps=replace(s, a=s.a * self.floor, b=s.b * self.arithmetic, g=s.g * self.kv, m=s.m * self.read),
            request_s=start.request_s * self.floor,
            roofline=start.roofline.times(self.read, self.arithmetic) if start.roofline else None,
            attention_s=start.attention_s * self.arithmetic,
            first=replace(first, overhead_s=first.overhead_s * self.overhead, prefill=first.prefill * self.prefill),
        )


class Measured(Protocol):
    """A point: a closed loop of clients, and what it measured, in seconds."""

    @property
    def shape(self) -> Shape:
        """The mean request."""
        ...

    @property
    def clients(self) -> int:
        """Clients that each have one request under way."""
        ...

    @property
    def tpot_s(self) -> float:
        """Mean time per output token; NaN where it was not measured."""
        ...

    @property
    def ttft_s(self) -> float:
        """Mean time to the first token; NaN where it was not measured."""
        ...


@dataclass(frozen=True, slots=True)
class Room:
    """Limits of the engine that was measured."""

    kv_tokens: int
    step_tokens: int
    max_sequences: int


def correct(start: StepPrior, points: Sequence[Measured], room: Room, trust: float = 1.0) -> Correction:
    """Fit factors to points. The prior holds those about which the points say nothing.

    Args:
        start: the prior.
        points: measured ones.
        room: limits of the engine.
        trust: factor on the weight of the prior.
    """
    guesses = [Guess(1.0, spread / math.sqrt(trust)) for spread in _SPREADS]

    def errors(values: Sequence[float]) -> list[float]:
        engine = Correction(*values).of(start)
        return [each for point in points for each in errors_of(engine, point, room)]

    weights = [1.0] * len(errors([1.0] * len(guesses)))
    return Correction(*fit(errors, guesses, weights, scatter=_SCATTER, robust=_ROBUST)) if weights else Correction()


def errors_of(engine: StepPrior, point: Measured, room: Room) -> list[float]:
    """Return the logarithms of predicted over measured TPOT and TTFT, as far as they were measured."""
    seen = steady(
        engine,
        point.clients,
        point.shape,
        kv_tokens=room.kv_tokens,
        step_tokens=room.step_tokens,
        max_sequences=room.max_sequences,
    )
    pairs = ((seen.itl_s, point.tpot_s), (seen.ttft_s, point.ttft_s))
    return [math.log(told / known) for told, known in pairs if known > 0]
