"""The limits of the store of responses, from the settings."""

from __future__ import annotations

from cluster.responses.contract import ResponseLimits
from cluster.settings import Settings

_LEASE = 0.4
"""Lease as a share of `queue.attach_grace_s`. A replica keeps a dead router's output for that grace, and another router
must have noticed and attached by then.
"""


def response_limits_from(settings: Settings) -> ResponseLimits:
    """Return the limits that all routers of a cluster share."""
    http = settings.router.http
    return ResponseLimits(
        ttl_ms=round(http.responses_ttl_s * 1000),
        lease_ms=max(200, round(_LEASE * settings.queue.attach_grace_s * 1000)),
        tenant_responses=http.responses_per_tenant,
        tenant_bytes=http.responses_tenant_mb << 20,
    )
