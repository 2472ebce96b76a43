"""What tenants who announced load really send: counters of routers, and rates from them. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from cluster.control.step_model import Shape

WINDOW_S = 60.0
"""Time over which rates are averaged, as the pool's are."""
SILENT_ROUTERS = 64
"""Most silent routers whose counters are kept. A router that starts again counts as another one."""
_SILENT_OF_TENANTS = 8
"""The same for counters of tenants, which are many values that a leader stores at each tick. Where no router at all is
heard all are kept."""

Counted = TypeVar("Counted")


@dataclass(frozen=True, slots=True)
class TenantCounts:
    """Counters of one tenant at one router, since the router began to count them."""

    requests: float = 0.0
    """Requests that arrived, choices counted one by one, with any outcome but that the tenant's quota refused them."""
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    """Prompt tokens that are likely to be found in a prefix cache."""
    output_tokens: float = 0.0
    """Output tokens that the requests are likely to produce."""
    refused: float = 0.0
    """Requests that the tenant's quota refused; none of the above. One that comes back counts once."""

    def plus(self, other: TenantCounts) -> TenantCounts:
        """Return the sum."""
        return TenantCounts(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.refused + other.refused,
        )

    def since(self, before: TenantCounts) -> TenantCounts:
        """Return what was counted since then."""
        if self.requests < before.requests or self.refused < before.refused:
            # The router began anew.
            return self
        return TenantCounts(
            self.requests - before.requests,
            max(0.0, self.prompt_tokens - before.prompt_tokens),
            max(0.0, self.cached_tokens - before.cached_tokens),
            max(0.0, self.output_tokens - before.output_tokens),
            self.refused - before.refused,
        )


LIMITED = 0.05
"""Part of a tenant's requests that its quota refuses from which on the quota bounds what comes."""

RouterCounts = Mapping[str, Mapping[str, TenantCounts]]
"""Counters by router and tenant."""


@dataclass(frozen=True, slots=True)
class TenantRate:
    """Arrivals of one tenant."""

    requests: float = 0.0
    """Requests per second that its quota lets through."""
    shape: Shape | None = None
    """Mean shape of the last ones; None before the first."""
    refused: float = 0.0
    """Requests per second that its quota refuses."""

    @property
    def asked(self) -> float:
        """Requests per second that the tenant sends."""
        return self.requests + self.refused

    @property
    def limited(self) -> bool:
        """Whether its quota bounds what comes."""
        return self.refused > LIMITED * self.asked


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Last counters and rates. `update` returns the next value."""

    at: float | None = None
    """Pool time in seconds; None before the first look."""
    counters: RouterCounts = field(default_factory=dict)
    rates: Mapping[str, TenantRate] = field(default_factory=dict)

    def update(self, at: float, counters: RouterCounts, announcing: Collection[str] = ()) -> Arrivals:
        """Return the arrivals after one more look. Tenants that no router counts any more are forgotten, except those
        that announce load: a router that has just begun does not count them yet.

        Args:
            at: pool time, seconds.
            counters: of each router that is heard now.
            announcing: tenants whose announcements are not over.
        """
        if self.counters and not counters:
            # What comes meanwhile is counted when routers are heard again.
            return self
        seconds = at - self.at if self.at is not None else 0.0
        kept = self._kept(counters, announcing)
        if seconds <= 0:
            return Arrivals(at, kept, self.rates)
        weight = 1.0 - math.exp(-seconds / WINDOW_S)
        tenants = {tenant for counted in counters.values() for tenant in counted}
        rates = {tenant: self.rates[tenant] for tenant in announcing if tenant in self.rates}
        for tenant in sorted(tenants):
            if tenant in rates and not self._told(tenant, counters):
                continue
            came = self._came(tenant, counters)
            old = self.rates.get(tenant, TenantRate())
            rate = old.requests + weight * (came.requests / seconds - old.requests)
            refused = old.refused + weight * (came.refused / seconds - old.refused)
            rates[tenant] = TenantRate(rate, _shape(came) or old.shape, refused)
        return Arrivals(at, kept, rates)

    def _kept(self, counters: RouterCounts, announcing: Collection[str]) -> RouterCounts:
        """Return the counters together with those of silent routers, as far as they may be asked for again."""
        silent = {
            router: {tenant: own for tenant, own in counted.items() if tenant in announcing}
            for router, counted in self.counters.items()
            if router not in counters
        }
        known = {router: counted for router, counted in silent.items() if counted}
        return with_silent(known, counters, _SILENT_OF_TENANTS)

    def _told(self, tenant: str, counters: RouterCounts) -> bool:
        """Return whether a router tells what came since the last look, and not only from when on it counts."""
        return any(tenant in counted and router in self.counters for router, counted in counters.items())

    def _came(self, tenant: str, counters: RouterCounts) -> TenantCounts:
        total = TenantCounts()
        for router, counted in counters.items():
            if tenant not in counted:
                continue
            known = self.counters.get(router)
            # What a router counted before this one ever heard of it may be old.
            before = counted[tenant] if known is None else known.get(tenant, TenantCounts())
            total = total.plus(counted[tenant].since(before))
        return total


def with_silent(
    before: Mapping[str, Counted], now: Mapping[str, Counted], most: int = SILENT_ROUTERS
) -> Mapping[str, Counted]:
    """Return the counters of routers that are heard now, together with the last ones of those that are not, at most so
    many. Without these all that a router ever counted would look new when it returns, or nothing of it.
    """
    silent = {router: counts for router, counts in before.items() if router not in now}
    for router in list(silent)[: max(0, len(silent) - most)]:
        # Routers that are silent for longest come first.
        del silent[router]
    return {**silent, **now}


def _shape(came: TenantCounts) -> Shape | None:
    if not came.requests:
        return None
    return Shape(
        prompt_tokens=came.prompt_tokens / came.requests,
        output_tokens=came.output_tokens / came.requests,
        cached_tokens=min(came.cached_tokens, came.prompt_tokens) / came.requests,
    )
