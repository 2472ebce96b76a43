"""Fit of a few positive constants to relative errors, each held to a first guess."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_STEP = 1e-4
_ROUNDS = 20
_LONGEST = 0.5
"""Largest move of a logarithm in one round."""
_DONE = 1e-3


@dataclass(frozen=True, slots=True)
class Guess:
    """A constant before the fit."""

    value: float
    spread: float
    """Standard deviation of its logarithm, as far as one knows without the points."""


def fit(
    errors: Callable[[Sequence[float]], Sequence[float]],
    guesses: Sequence[Guess],
    weights: Sequence[float],
    *,
    scatter: float = 0.08,
    robust: float = 0.15,
) -> list[float]:
    """Return the constants with the least squares of errors.

    Args:
        errors: logarithms of predicted over measured values, by the constants.
        guesses: where to begin, and what holds the constants of which the points say nothing.
        weights: of the errors.
        scatter: standard deviation of an error that is chance.
        robust: error beyond which a point pulls no harder.
    """
    start = np.log([each.value for each in guesses])
    hold = np.array([each.spread**-2 for each in guesses])
    place, weight = start.copy(), np.array(weights)
    for _ in range(_ROUNDS):
        now = np.array(errors([math.exp(each) for each in place]))
        slopes = np.empty((len(now), len(place)))
        for column in range(len(place)):
            moved = place.copy()
            moved[column] += _STEP
            slopes[:, column] = (np.array(errors([math.exp(each) for each in moved])) - now) / _STEP
        pull = weight * np.minimum(1.0, robust / np.maximum(np.abs(now), 1e-9)) / scatter**2
        curve = slopes.T @ (slopes * pull[:, None]) + np.diag(hold)
        move = -np.linalg.solve(curve, slopes.T @ (pull * now) + hold * (place - start))
        largest = float(np.max(np.abs(move)))
        place = place + min(1.0, _LONGEST / max(largest, 1e-12)) * move
        if largest < _DONE:
            break
    return [math.exp(each) for each in place]
