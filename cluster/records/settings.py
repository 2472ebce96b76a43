"""The limits of the store of request records, from the settings."""

from __future__ import annotations

from cluster.records.contract import RecordLimits
from cluster.settings import Settings


def record_limits_from(settings: Settings) -> RecordLimits:
    """Return the limits that all routers of a cluster share."""
    records = settings.router.records
    return RecordLimits(records.most, round(records.missed_s * 1000), records.max_mb << 20)
