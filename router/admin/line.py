"""The line of a pool by class and tenant, and tenants' quotas, for operators."""

from __future__ import annotations

from collections.abc import Callable

from cluster.queue.entries import Quota
from cluster.queue.line import Line, QuotaUse
from penstock.models import RequestClass
from penstock.v1 import admin_pb2 as api
from penstock.wire import duration_to_wire, request_class_to_wire
from router.dispatch.pool import Pool
from router.identity import TenantPolicies


def add_line(status: api.PoolStatus, line: Line, pool: Pool, policies: TenantPolicies) -> None:
    """Add line and quotas to a pool's status."""
    status.line.extend(line_entries(line, lambda tenant: policies.of(tenant, pool.name).weight))
    refused = pool.admission.refusals.refused()
    for tenant in sorted({*line.quotas, *refused}):
        use = line.quotas.get(tenant, QuotaUse(0, 0, 0, 0, 0))
        status.quotas.append(tenant_quota(tenant, use, policies.of(tenant, pool.name).quota, refused[tenant]))


def line_entries(line: Line, weight_of: Callable[[str], float]) -> list[api.LineEntry]:
    """Return who waits, and then who only holds slots. `weight_of`: a tenant's weight by the settings; in a cell it may
    have another one.
    """
    running = {(each.request_class, each.tenant): each.slots for each in line.holders}
    found = [
        api.LineEntry(
            request_class=request_class_to_wire(each.request_class),
            tenant=each.tenant,
            waiting=each.waiting,
            oldest_wait=duration_to_wire(each.oldest_ms / 1000),
            served_ahead=each.service,
            weight=weight_of(each.tenant),
            running=running.pop((each.request_class, each.tenant), 0),
        )
        for each in line.lines
    ]
    return found + [
        api.LineEntry(request_class=request_class_to_wire(RequestClass(number)), tenant=tenant, running=slots)
        for (number, tenant), slots in running.items()
    ]


def tenant_quota(tenant: str, use: QuotaUse, quota: Quota, refused: int) -> api.TenantQuota:
    """Return a tenant's quota with what is left of it.

    Args:
        tenant: its name.
        use: what it has used, as the queue knows.
        quota: its limits by the settings.
        refused: calls that were refused in the last minute because of it.
    """
    found = api.TenantQuota(
        tenant=tenant,
        tokens_per_minute=quota.tokens_per_minute,
        requests_per_minute=quota.requests_per_minute,
        concurrency=quota.concurrency,
        open=use.open,
        refused=refused,
    )
    buckets = (
        ("tokens_per_minute", quota.tokens_per_minute, use.tokens),
        ("requests_per_minute", quota.requests_per_minute, use.requests),
    )
    longest_s = 0.0
    for name, rate, used in buckets:
        if not rate:
            continue
        left = rate - used
        setattr(found, name.replace("per_minute", "left"), left)
        blocked_s = (1 - left) / rate * 60
        if left < 1 and blocked_s > longest_s:
            longest_s, found.blocked_by = blocked_s, name
    if longest_s:
        found.blocked_for.CopyFrom(duration_to_wire(longest_s))
    elif quota.concurrency and use.open >= quota.concurrency:
        found.blocked_by = "concurrency"
    return found
