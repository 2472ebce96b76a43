"""Entries and replicas of the model of a cell, and the line of one class."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from typing import final

MOST_REPLICAS = 1 << 20
"""Replica numbers are below this."""
_PLACES = 1 << 40
"""Steps of a replica's use, of which a slot of the largest is many."""


@final
class CellEntry:
    """Request in a cell. Tenants and replicas are numbers, of which the order is that of their names."""

    __slots__ = (
        "arrived_ms",
        "charged",
        "counted",
        "expected",
        "moved",
        "number",
        "on",
        "output",
        "pinned",
        "preferred",
        "prompt",
        "request_class",
        "router",
        "skips",
        "tenant",
        "waits",
        "weight",
    )

    # Not a dataclass, whose constructor mypyc leaves to Python.
    def __init__(
        self, number: int, tenant: int, request_class: int, *, prompt: int, expected: int, weight: float = 1.0
    ) -> None:
        """Build an entry that no cell has seen.

        Args:
            number: its own, in the order of arrivals.
            tenant: whose it is.
            request_class: number of its class.
            prompt: tokens.
            expected: output tokens that it is charged for at first.
            weight: of its tenant.
        """
        self.number = number
        self.tenant = tenant
        self.request_class = request_class
        self.prompt = prompt
        self.expected = expected
        self.weight = weight
        self.preferred: tuple[int, ...] = ()
        self.router = 0
        self.output = 0
        """Output tokens that it will have."""
        self.arrived_ms = 0
        self.moved = 0
        """How often it went to another cell."""
        self.pinned = False
        self.charged = -1
        self.counted = False
        self.skips = 0
        self.on: ModelReplica | None = None
        """Replica that runs it."""
        self.waits = False


@dataclass(slots=True, eq=False)
class ModelReplica:
    """Replica of a cell."""

    number: int
    sequences: int
    """Slots that it takes now; 0 while it leaves."""
    held: int = 0
    free_at: int = -1
    """Its place among those with a free slot, as it was noted last."""

    def place(self) -> int:
        """Return its place among those with a free slot, -1 without one: by the part of the slots that is held, then by
        number. One number, which is compared several times as fast as a pair.
        """
        if self.held >= self.sequences:
            return -1
        return self.held * _PLACES // self.sequences * MOST_REPLICAS + self.number


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
