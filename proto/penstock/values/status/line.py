"""Who waits in a pool, by class and tenant, and what is left of tenants' quotas, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.models import RequestClass
from penstock.v1 import admin_pb2
from penstock.wire import duration_from_wire, request_class_from_wire


@dataclass(frozen=True, slots=True)
class LineEntry:
    """Requests of one tenant in one class that wait or run."""

    request_class: RequestClass
    tenant: str
    waiting: int
    oldest_wait: float
    """Seconds that the oldest one has waited."""
    served_ahead: int
    """Weighted tokens that the tenant was served more than the one whose turn comes next in its class."""
    weight: float
    """Weight of its share; 0 where no request of it waits."""
    running: int
    """Slots that it holds."""

    @classmethod
    def from_proto(cls, wire: admin_pb2.LineEntry) -> LineEntry:
        return cls(
            request_class_from_wire(wire.request_class),
            wire.tenant,
            wire.waiting,
            duration_from_wire(wire.oldest_wait),
            wire.served_ahead,
            wire.weight,
            wire.running,
        )


@dataclass(frozen=True, slots=True)
class TenantQuota:
    """Use of a tenant's quota in one pool. A limit of 0 is no bound, and nothing is left of it then."""

    tenant: str
    tokens_per_minute: int
    tokens_left: int
    """Below 0 after a request that used more than was expected."""
    requests_per_minute: int
    requests_left: int
    concurrency: int
    open: int
    """Requests that count against `concurrency`."""
    blocked_by: str
    """Name of the limit that leaves room for nothing now; empty for none."""
    blocked_for: float | None
    """Seconds until it does; None for concurrency."""
    refused: int
    """Calls that the router refused in the last minute because of the quota."""

    @classmethod
    def from_proto(cls, wire: admin_pb2.TenantQuota) -> TenantQuota:
        return cls(
            wire.tenant,
            wire.tokens_per_minute,
            wire.tokens_left,
            wire.requests_per_minute,
            wire.requests_left,
            wire.concurrency,
            wire.open,
            wire.blocked_by,
            duration_from_wire(wire.blocked_for) if wire.HasField("blocked_for") else None,
            wire.refused,
        )
