"""Plan for a pattern that the record foretells."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.forecast.pool_forecast import Outlook


@dataclass(frozen=True, slots=True)
class AheadRules:
    """Constants of the plan."""

    least_change: float = 0.05
    """Smallest change of the load, as a part, that counts. A smaller one is left to the present."""
    least_down: float = 0.7
    """Smallest factor on the present load. A load that is said to fall further must first show it. A load that does
    not fall at all is not believed to: after a change of the clocks people come and go an hour later or earlier than on
    the days before."""


@dataclass(frozen=True, slots=True)
class AheadPlan:
    """Factors on the present load."""

    change: float
    """One cold start from now."""
    later: float
    """The largest until a replica that is removed now could be back."""


def plan_ahead(outlook: Outlook | None, rules: AheadRules) -> AheadPlan | None:
    """Return the plan; None where no pattern is known well enough, or where it foretells no change."""
    pattern = None if outlook is None else outlook.pattern
    if pattern is None or not pattern.trusted:
        return None
    change = max(rules.least_down if pattern.falling else 1.0, pattern.change)
    if max(abs(change - 1.0), pattern.later - 1.0) < rules.least_change:
        return None
    # A peak that is over before a replica could come back keeps the replicas; it orders none before its time.
    return AheadPlan(change, max(change, pattern.later))
