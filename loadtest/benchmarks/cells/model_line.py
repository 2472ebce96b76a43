"""Entries and replicas of the model of a cell, and the line of one class."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class CellEntry:
    """Request in a cell. Tenants and replicas are numbers, of which the order is that of their names."""

    number: int
    tenant: int
    request_class: int
    prompt: int
    expected: int
    """Output tokens that it is charged for at first."""
    weight: float = 1.0
    preferred: tuple[int, ...] = ()
    router: int = 0
    output: int = 0
    """Output tokens that it will have."""
    arrived_ms: int = 0
    moved: int = 0
    """How often it went to another cell."""
    pinned: bool = False
    charged: int = -1
    counted: bool = False
    skips: int = 0
    on: ModelReplica | None = None
    """Replica that runs it."""
    waits: bool = False


@dataclass(slots=True, eq=False)
class ModelReplica:
    """Replica of a cell."""

    number: int
    sequences: int
    """Slots that it takes now; 0 while it leaves."""
    held: int = 0
    free_at: tuple[float, int] | None = None
    """Its place among those with a free slot."""


@dataclass(slots=True)
class ClassLine:
    """Waiting entries of one class, and the service of its tenants."""

    lists: dict[int, deque[CellEntry]] = field(default_factory=dict)
    """Entries by tenant, oldest first."""
    service: dict[int, float] = field(default_factory=dict)
    """Service of tenants with waiting entries."""
    order: list[tuple[float, int]] = field(default_factory=list)
    """The same, sorted."""
    idle: dict[int, float] = field(default_factory=dict)
    """Service of others that are above the floor."""
    idle_heap: list[tuple[float, int]] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    """Estimated charges that are not settled, in thousandths."""
    virtual: float = 0.0
    share_served: float = 0.0
    count: int = 0

    def floor(self) -> tuple[float, bool]:
        if not self.order:
            return self.virtual, False
        service, tenant = self.order[0]
        return service - self.open.get(tenant, 0) / 1000, True

    def put_service(self, tenant: int, service: float) -> None:
        before = self.service.get(tenant)
        if before is not None:
            del self.order[bisect_left(self.order, (before, tenant))]
        self.service[tenant] = service
        insort(self.order, (service, tenant))

    def put_idle(self, tenant: int, service: float) -> None:
        self.idle[tenant] = service
        heapq.heappush(self.idle_heap, (service, tenant))

    def prune(self, floor: float) -> None:
        heap, idle = self.idle_heap, self.idle
        while heap and heap[0][0] <= floor:
            service, tenant = heapq.heappop(heap)
            if idle.get(tenant) == service:
                del idle[tenant]
