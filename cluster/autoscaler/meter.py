"""From counters to rates: what arrives per second, how large it is, and how much of it is served within its SLO.

Routers come and go; their counters start at 0. What one had counted when it was last heard is counted, the rest is lost
with it. One that is new soon after the first look may have served for long before it. Averages fade, they do not stop:
a router that fell silent never looks like a pool without requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cluster.autoscaler.router_report import ClassCounts, Counts
from cluster.control.step_model import Shape
from penstock.models import RequestClass

ATTAINMENT_WINDOW_S = 600.0
ATTAINMENT_LEAST = 200.0
"""Fewer judged requests within the window say nothing."""


@dataclass(frozen=True, slots=True)
class ClassRates:
    """Is what arrives of one class, per second."""

    requests: float = 0.0
    shape: Shape | None = None
    """Of those requests; None before the first."""


SILENT_ROUTERS = 64
"""Routers whose counters are kept while they are not heard; each start of a router is another one."""


JOINING_S = 60.0
"""For so long after the first look a router that is new to it brings a past, and no requests of a few seconds: where a
store lost everything an autoscaler may look before all routers have joined again."""


@dataclass(frozen=True, slots=True)
class Meter:
    """Remembers the last counters and the averages. `update` returns the next one."""

    at: float | None = None
    """Pool time in seconds; None before the first look."""
    seen_s: float = 0.0
    """Time that the averages rest on."""
    reported_at: float | None = None
    """When a router was last heard."""
    counters: Mapping[str, Counts] = field(default_factory=dict)
    """By router."""
    rates: Mapping[RequestClass, ClassRates] = field(default_factory=dict)
    judged: float = 0.0
    """Requests per second that were judged, over the attainment's window."""
    met: float = 0.0
    arrived_at: float | None = None
    """When a request was last counted; the averages fade, and never end."""

    @property
    def attainment(self) -> float | None:
        """Part of the last minutes' requests that were served within their SLO; None where too few."""
        if self.judged * min(self.seen_s, ATTAINMENT_WINDOW_S) < ATTAINMENT_LEAST:
            return None
        return min(1.0, self.met / self.judged)

    def update(self, at: float, reports: Mapping[str, Counts], newest_age_s: float | None, window_s: float) -> Meter:
        """Take what routers report now.

        Args:
            at: pool time, seconds.
            reports: of each router.
            newest_age_s: age of the newest report; None without any.
            window_s: rates are averaged over so long.
        """
        reported_at = self.reported_at if newest_age_s is None else at - newest_age_s
        if self.at is None or not self.counters:
            # Without a router there was no first look.
            return replace(self, at=at, reported_at=reported_at if reported_at is not None else at, counters=reports)
        counters = self._kept(reports)
        seconds = at - self.at
        if seconds <= 0:
            # Another store, whose clock is behind: from here on, with what was known.
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

    def _kept(self, reports: Mapping[str, Counts]) -> Mapping[str, Counts]:
        """Remember routers that are not heard now: all that one ever counted would look new when it comes back."""
        silent = {router: counts for router, counts in self.counters.items() if router not in reports}
        for router in list(silent)[: max(0, len(silent) - SILENT_ROUTERS)]:
            # Those that are silent for longest come first.
            del silent[router]
        return {**silent, **reports}

    def _came(self, reports: Mapping[str, Counts]) -> Counts:
        """Add up what was counted since the last look."""
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
    """Weigh new values: as a plain mean until the window is full, then exponentially."""
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
    # By requests, not by time: a second with one long prompt weighs as much as its requests do.
    part = weight * came.requests / seconds / rate
    return ClassRates(
        rate,
        Shape(
            prompt_tokens=old.shape.prompt_tokens + part * (found.prompt_tokens - old.shape.prompt_tokens),
            output_tokens=old.shape.output_tokens + part * (found.output_tokens - old.shape.output_tokens),
            cached_tokens=old.shape.cached_tokens + part * (found.cached_tokens - old.shape.cached_tokens),
        ),
    )
