"""The job store's limits, from the settings."""

from __future__ import annotations

from cluster.jobs.contract import JobLimits
from cluster.settings import JobsSettings


def job_limits_from(settings: JobsSettings) -> JobLimits:
    """Return the limits that all routers of a cluster share."""
    return JobLimits(
        lease_ms=round(settings.lease_s * 1000),
        upload_ms=round(settings.upload_s * 1000),
        ttl_ms=round(settings.ttl_s * 1000),
        tenant_feeding=settings.tenant_feeding,
        tenant_jobs=settings.tenant_jobs,
        tenant_items=settings.tenant_items,
        tenant_bytes=settings.tenant_mb << 20,
        max_jobs=settings.max_jobs,
        max_items=settings.max_items,
        max_bytes=settings.max_mb << 20,
    )
