"""Rates from routers' counters: requests per second, their size, and the part that is served within its SLO.

Routers come and go, and their counters start at 0. When a router disappears, its last report counts; what it counted
after that is lost. A router that is new soon after the first tick may have served for long before. Averages fade and
never stop, so a router that fell silent does not look like a pool without requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cluster.announced.arrivals import with_silent
from cluster.autoscaler.router_report import ClassCounts, Counts
from cluster.control.step_model import Shape
from penstock.models import RequestClass

ATTAINMENT_WINDOW_S = 600.0
ATTAINMENT_LEAST = 200.0
"""Least number of judged requests within the window that say something."""


@dataclass(frozen=True, slots=True)
class ClassRates:
    """Arrivals of one class."""

    requests: float = 0.0
    """Requests per second."""
    shape: Shape | None = None
    """Mean shape of those requests; None before the first."""


JOINING_S = 60.0
"""Time after the first tick in which the counters of a new router count as its past, not as new requests. After a loss
of all data an autoscaler may look before all routers have joined again."""


@dataclass(frozen=True, slots=True)
class Meter:
    """Last counters and averages. `update` returns the next value."""

    at: float | None = None
    """Pool time in seconds; None before the first tick."""
    seen_s: float = 0.0
    """Time that the averages cover, seconds."""
    reported_at: float | None = None
    """Pool time of the last report of any router, seconds."""
    counters: Mapping[str, Counts] = field(default_factory=dict)
    """Last counters of each router."""
    rates: Mapping[RequestClass, ClassRates] = field(default_factory=dict)
    judged: float = 0.0
    """Judged requests per second, averaged over `ATTAINMENT_WINDOW_S`."""
    met: float = 0.0
    """Requests per second that met their SLO, averaged in the same way."""
    arrived_at: float | None = None
    """Pool time of the last counted request, seconds. The averages alone would not tell: they fade and never end."""

    @property
    def attainment(self) -> float | None:
        """Part of the requests in `ATTAINMENT_WINDOW_S` that were served within their SLO; None if too few."""
        if self.judged * min(self.seen_s, ATTAINMENT_WINDOW_S) < ATTAINMENT_LEAST:
            return None
        return min(1.0, self.met / self.judged)

    def update(self, at: float, reports: Mapping[str, Counts], newest_age_s: float | None, window_s: float) -> Meter:
        """Return the meter after one more tick.

        Args:
            at: pool time, seconds.
            reports: last counters of each router that is heard now.
            newest_age_s: age of the newest report, seconds; None without any.
            window_s: time over which rates are averaged, seconds.
        """
        reported_at = self.reported_at if newest_age_s is None else at - newest_age_s
        if self.at is None or not self.counters:
            # A tick without any router does not count as the first one.
            return replace(self, at=at, reported_at=reported_at if reported_at is not None else at, counters=reports)
        counters = with_silent(self.counters, reports)
        seconds = at - self.at
        if seconds <= 0:
            # The store was replaced and its clock is behind: continue from its time with the known averages.
            arrived_at = None if self.arrived_at is None else min(self.arrived_at, at)
            return replace(self, at=at, reported_at=at, counters=counters, arrived_at=arrived_at)
        seen_s = self.seen_s + seconds
        came = self._came(reports)
        weight = _weight(seconds, seen_s, window_s)
        rates = {}
        for request_class in RequestClass:
            old = self.rates.get(request_class, ClassRates())
            new = came.get(request_class, ClassCounts())
            rates[request_class] = _mixed(old, new, seconds, weight)
        slow = _weight(seconds, seen_s, ATTAINMENT_WINDOW_S)
        judged, met = sum(c.judged for c in came.values()), sum(c.met for c in came.values())
        return Meter(
            at=at,
            seen_s=seen_s,
            reported_at=reported_at,
            counters=counters,
            rates=rates,
            judged=self.judged + slow * (judged / seconds - self.judged),
            met=self.met + slow * (met / seconds - self.met),
            arrived_at=at if any(c.requests for c in came.values()) else self.arrived_at,
        )

    def _came(self, reports: Mapping[str, Counts]) -> Counts:
        """Return what all routers counted since the last tick."""
        came: Counts = {}
        for router, counts in reports.items():
            before = self.counters.get(router, counts if self.seen_s < JOINING_S else {})
            for request_class, now in counts.items():
                was, total = before.get(request_class, ClassCounts()), came.setdefault(request_class, ClassCounts())
                total.requests += max(0.0, now.requests - was.requests)
                total.prompt_tokens += max(0.0, now.prompt_tokens - was.prompt_tokens)
                total.cached_tokens += max(0.0, now.cached_tokens - was.cached_tokens)
                total.output_tokens += max(0.0, now.output_tokens - was.output_tokens)
                total.judged += max(0.0, now.judged - was.judged)
                total.met += max(0.0, now.met - was.met)
        return came


def _weight(seconds: float, seen_s: float, window_s: float) -> float:
    """Return the weight of new values: that of a plain mean until the window is full, then of an exponential mean."""
    plain = seconds / seen_s if seen_s <= window_s or seconds >= seen_s else 0.0
    return max(plain, 1.0 - math.exp(-seconds / window_s))


def _mixed(old: ClassRates, came: ClassCounts, seconds: float, weight: float) -> ClassRates:
    rate = old.requests + weight * (came.requests / seconds - old.requests)
    if not came.requests:
        return ClassRates(rate, old.shape)
    found = Shape(
        prompt_tokens=came.prompt_tokens / came.requests,
        output_tokens=came.output_tokens / came.requests,
        cached_tokens=min(came.cached_tokens, came.prompt_tokens) / came.requests,
    )
    if old.shape is None or rate <= 0:
        return ClassRates(rate, found)
    # Weighed by requests, not by time: a second with one long prompt counts for one request only.
    part = weight * came.requests / seconds / rate
    return ClassRates(
        rate,
        Shape(
            prompt_tokens=old.shape.prompt_tokens + part * (found.prompt_tokens - old.shape.prompt_tokens),
            output_tokens=old.shape.output_tokens + part * (found.output_tokens - old.shape.output_tokens),
            cached_tokens=old.shape.cached_tokens + part * (found.cached_tokens - old.shape.cached_tokens),
        ),
    )
