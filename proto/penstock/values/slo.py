"""Targets that operators set: latency, attainment and budget. Policies work out the rest; there is no utilisation
target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from penstock.models import RequestClass


@dataclass(frozen=True, slots=True)
class ClassSlo:
    """Latency that one class of requests is promised; None promises nothing."""

    ttft_p99_s: float | None = None
    """Time to first token, 99th percentile, seconds from the request's arrival."""
    itl_p95_s: float | None = None
    """Time between two tokens, 95th percentile, seconds."""

    @property
    def empty(self) -> bool:
        """Whether nothing is promised."""
        return self.ttft_p99_s is None and self.itl_p95_s is None


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Targets that a pool is run for."""

    interactive: ClassSlo = field(default_factory=ClassSlo)
    standard: ClassSlo = field(default_factory=ClassSlo)
    batch: ClassSlo = field(default_factory=ClassSlo)
    attainment: float = 0.99
    """Part of the requests that must be served within their SLO, 0 to 1."""
    price_per_gpu_hour: float = 0.0
    """Price of an accelerator per hour, in any currency."""
    budget_per_hour: float | None = None
    """Most that the pool may cost per hour, in the same currency; None is no bound. Bounds nothing without a price."""

    def of(self, request_class: RequestClass) -> ClassSlo:
        """Return the SLO of a class."""
        return (self.interactive, self.standard, self.batch)[request_class]

    @property
    def itl_p95_s(self) -> float | None:
        """Tightest bound on the inter-token latency, in seconds: all classes share one batch. None bounds nothing."""
        bounds = [slo.itl_p95_s for slo in (self.interactive, self.standard, self.batch) if slo.itl_p95_s is not None]
        return min(bounds, default=None)

    @property
    def empty(self) -> bool:
        """Whether no class is promised anything."""
        return self.interactive.empty and self.standard.empty and self.batch.empty

    def affordable(self, gpus_per_replica: int) -> int | None:
        """Return how many replicas the budget pays for; None is no bound."""
        hourly = self.price_per_gpu_hour * gpus_per_replica
        if self.budget_per_hour is None or hourly <= 0:
            return None
        # Prices are decimals, which floats represent inexactly. A huge budget may give infinity, which is no bound.
        paid_for = self.budget_per_hour / hourly + 1e-9
        return int(paid_for) if paid_for < math.inf else None
