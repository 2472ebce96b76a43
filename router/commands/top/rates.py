"""Rates from counters that are looked at again and again. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.client import ClusterStatus, PoolStatus, RequestClass

RATE_S = 5.0
"""Seconds over which rates are taken. Replicas report once a second, so a shorter time would show their beat."""
KEPT_S = 60.0
"""Seconds of which the share of requests within their SLO is taken."""

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """All counters at one moment."""

    at: float
    """Seconds of the monotonic clock."""
    counters: Mapping[Key, float]


@dataclass(frozen=True, slots=True)
class Rates:
    """The looks of the last minute, oldest first. `after` returns the next value."""

    samples: tuple[Sample, ...] = field(default=())

    def after(self, at: float, status: ClusterStatus) -> Rates:
        """Return the rates with one more look."""
        kept = tuple(each for each in self.samples if each.at >= at - KEPT_S)
        return Rates((*kept, Sample(at, _counters(status))))

    def tokens(self, pool: PoolStatus, replica_id: str | None = None) -> float | None:
        """Return output tokens per second of a replica, or of all of a pool; None before a second look."""
        if replica_id is not None:
            return self._rate(("tokens", pool.name, replica_id))
        found = [self._rate(("tokens", pool.name, each.replica_id)) for each in pool.replicas]
        known = [each for each in found if each is not None]
        return sum(known) if known or not found else None

    def requests(self, pool: PoolStatus) -> float | None:
        """Return the requests per second that arrive in a pool; None before a second look."""
        found = [self._rate(("requests", pool.name, each.request_class.name)) for each in pool.classes]
        known = [each for each in found if each is not None]
        return sum(known) if known else None

    def met(self, pool: PoolStatus, request_class: RequestClass | None = None) -> float | None:
        """Return the part of the last minute's requests that were served within their SLO; None where none ended."""
        names = [each.request_class.name for each in pool.classes if request_class in (None, each.request_class)]
        judged = sum(self._added(("judged", pool.name, name), KEPT_S)[0] for name in names)
        met = sum(self._added(("met", pool.name, name), KEPT_S)[0] for name in names)
        return min(1.0, met / judged) if judged > 0 else None

    def _rate(self, key: Key) -> float | None:
        added, seconds = self._added(key, RATE_S)
        return added / seconds if seconds > 0 else None

    def _added(self, key: Key, most_s: float) -> tuple[float, float]:
        """Return what was added to a counter, and within which time. A counter that fell began again: then only what
        came since counts.
        """
        if not self.samples:
            return 0.0, 0.0
        last = self.samples[-1].at
        added, first, before = 0.0, None, None
        for each in self.samples:
            value = each.counters.get(key)
            if each.at < last - most_s or value is None:
                continue
            if before is not None and value > before:
                added += value - before
            first, before = each.at if first is None else first, value
        return added, 0.0 if first is None else last - first


def _counters(status: ClusterStatus) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for pool in status.pools:
        for replica in pool.replicas:
            found["tokens", pool.name, replica.replica_id] = replica.output_tokens
        for each in pool.classes:
            name = each.request_class.name
            found["requests", pool.name, name] = each.requests
            found["judged", pool.name, name] = each.judged
            found["met", pool.name, name] = each.met
    return found
