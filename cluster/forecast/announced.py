"""Work that tenants have announced."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnnouncedWork:
    """Announced work that is believed to come. All of it in replica-seconds per second."""

    soon: float
    """Beyond what comes already, one cold start from now at the latest."""
    said: float
    """What tenants said for then, believed or not."""
    recent: bool
    """Whether an announced load began within a cold start, so that averages do not show all of it yet."""
    rises: tuple[AnnouncedRise, ...] = ()
    """What is more than `soon` and comes later, in order of time. An order that is bounded may have to begin now."""


@dataclass(frozen=True, slots=True)
class AnnouncedRise:
    """Moment from which more announced work comes than before."""

    in_s: float
    """Seconds from now."""
    soon: float
    """All that is believed to come from then on beyond what comes already."""
    said: float
    """What tenants said for then, believed or not."""
