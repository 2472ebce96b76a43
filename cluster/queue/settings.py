"""Takes the queue's limits from the settings."""

from __future__ import annotations

from cluster.queue.base import QueueLimits
from cluster.settings import QueueSettings


def limits_from(settings: QueueSettings) -> QueueLimits:
    """Build the limits that every router and replica of a cluster shares."""
    return QueueLimits(
        lease_ms=round(settings.lease_s * 1000),
        attach_grace_ms=round(settings.attach_grace_s * 1000),
        max_waiting=settings.max_waiting,
        lookahead=settings.lookahead,
    )
