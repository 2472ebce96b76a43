"""Work that tenants have announced."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnnouncedWork:
    """Announced work that is believed to come. All of it in replica-seconds per second."""

    soon: float
    """Beyond what comes already, one cold start from now at the latest."""
    later: float
    """The same, until a replica that is removed now could be back."""
    said: float
    """What tenants said for one cold start from now, believed or not."""
    recent: bool
    """Whether an announced load began within a cold start, so that averages do not show all of it yet."""
