"""The belief as a leader hands it to the next one: plain values for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import Any

from cluster.announced.arrivals import Arrivals, TenantCounts, TenantRate
from cluster.announced.belief import Belief, TenantBelief
from cluster.control.step_model import Shape


def belief_values(belief: Belief) -> dict[str, Any]:
    """Return what `read_belief` reads."""
    arrivals = belief.arrivals
    return {
        "at": arrivals.at,
        "counters": {
            router: {tenant: astuple(own) for tenant, own in counted.items()}
            for router, counted in arrivals.counters.items()
        },
        "rates": {
            tenant: [rate.requests, *(astuple(rate.shape) if rate.shape is not None else ())]
            for tenant, rate in arrivals.rates.items()
        },
        "refused": {tenant: rate.refused for tenant, rate in arrivals.rates.items()},
        "tenants": {tenant: astuple(own) for tenant, own in belief.tenants.items()},
    }


def read_belief(stored: Mapping[str, Any]) -> Belief:
    """Read what `belief_values` returned; an empty mapping is the first belief.

    Raises:
        ValueError, KeyError, TypeError: the values are anything else.
    """
    if not stored:
        return Belief()
    counters = {
        router: {tenant: TenantCounts(*own[: len(fields(TenantCounts))]) for tenant, own in counted.items()}
        for router, counted in stored["counters"].items()
    }
    refused = stored.get("refused", {})
    rates = {
        tenant: TenantRate(rate, Shape(*shape[: len(fields(Shape))]) if shape else None, refused.get(tenant, 0.0))
        for tenant, (rate, *shape) in stored["rates"].items()
    }
    tenants = {tenant: TenantBelief(*own[: len(fields(TenantBelief))]) for tenant, own in stored["tenants"].items()}
    return Belief(Arrivals(stored["at"], counters, rates), tenants)
