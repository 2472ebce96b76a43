"""How evenly tenants are served."""

from __future__ import annotations

import numpy as np


def fair_shares(asked: np.ndarray, weights: np.ndarray, total: float) -> np.ndarray:
    """Divide a total among tenants by weight. None gets more than it asked for; what that leaves goes to the others."""
    got = np.zeros_like(asked)
    open_ = asked > 0
    left = min(total, float(asked.sum()))
    while left > 1e-9 and open_.any():
        level = left / float(weights[open_].sum())
        enough = open_ & (asked - got <= level * weights)
        if not enough.any():
            got[open_] += level * weights[open_]
            break
        left -= float((asked - got)[enough].sum())
        got[enough] = asked[enough]
        open_ &= ~enough
    return got


def jain(values: np.ndarray) -> float:
    """Return Jain's index: 1 where all values are the same, 1/n where one has everything."""
    squares = float((values * values).sum())
    return float(values.sum()) ** 2 / (len(values) * squares) if squares else 1.0


def fairness(served: np.ndarray, asked: np.ndarray, weights: np.ndarray, least: float = 0.0) -> float:
    """Return Jain's index of what tenants were served, of what they would get of their class's total by weight.

    Args:
        served: tokens by class and tenant.
        asked: the same, of what they asked for.
        weights: by tenant.
        least: tokens that a tenant must be due to count. What is due as much as a few requests gets all or nothing.
    """
    fair = np.array([fair_shares(some, weights, float(got.sum())) for got, some in zip(served, asked, strict=True)])
    some = (fair > 0) & (fair >= least)
    ratios = served[some] / fair[some]
    return jain(ratios) if len(ratios) else 1.0
