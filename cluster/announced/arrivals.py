"""What tenants who announced load really send: counters of routers, and rates from them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.control.step_model import Shape

WINDOW_S = 60.0
"""Time over which rates are averaged, as the pool's are."""


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

    def update(self, at: float, counters: RouterCounts) -> Arrivals:
        """Return the arrivals after one more look. Tenants that no router counts any more are forgotten.

        Args:
            at: pool time, seconds.
            counters: of each router that is heard now.
        """
        seconds = at - self.at if self.at is not None else 0.0
        if seconds <= 0:
            return Arrivals(at, counters, self.rates)
        weight = 1.0 - math.exp(-seconds / WINDOW_S)
        tenants = {tenant for counted in counters.values() for tenant in counted}
        rates = {}
        for tenant in sorted(tenants):
            came = self._came(tenant, counters)
            old = self.rates.get(tenant, TenantRate())
            rate = old.requests + weight * (came.requests / seconds - old.requests)
            refused = old.refused + weight * (came.refused / seconds - old.refused)
            rates[tenant] = TenantRate(rate, _shape(came) or old.shape, refused)
        return Arrivals(at, counters, rates)

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


def _shape(came: TenantCounts) -> Shape | None:
    if not came.requests:
        return None
    return Shape(
        prompt_tokens=came.prompt_tokens / came.requests,
        output_tokens=came.output_tokens / came.requests,
        cached_tokens=min(came.cached_tokens, came.prompt_tokens) / came.requests,
    )
