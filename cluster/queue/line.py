"""Values of the queue's line: who waits, who holds the slots, and what tenants have used of their quotas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.models import RequestClass

ASKED = 32
"""Most entries of which one report of the line tells what is ahead."""


@dataclass(frozen=True, slots=True)
class TenantLine:
    """Waiting entries of one tenant in one class."""

    request_class: RequestClass
    tenant: str
    waiting: int
    oldest_ms: int
    """Wait of its oldest entry."""
    service: int
    """Weighted tokens that it was served more than the tenant that comes next in its class; 0 for that one."""
    weight: float


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """Slots of one tenant in one class."""

    request_class: RequestClass
    tenant: str
    slots: int
    """Where many slots are held, this is estimated from a part of them."""


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Use of a tenant's quota now. A rate is 0 where the queue knows no bound."""

    tokens: int
    tokens_per_minute: int
    requests: int
    requests_per_minute: int
    open: int
    """Requests that count against its concurrency."""


@dataclass(frozen=True, slots=True)
class PlaceInLine:
    """What is ahead of one waiting entry."""

    own_ahead: int
    """Entries of its class and tenant that come before it."""
    passed: int
    """How often others were granted before it although it came before them."""


@dataclass(frozen=True, slots=True)
class Line:
    """The line of a pool. Of many tenants those are listed that come next."""

    time_ms: int = 0
    """Pool time."""
    waiting: tuple[int, int, int] = (0, 0, 0)
    """Waiting entries per class."""
    tenants: tuple[int, int, int] = (0, 0, 0)
    """Tenants with waiting entries per class; more than are listed, perhaps."""
    lines: tuple[TenantLine, ...] = ()
    """Ordered by class, and then by whose turn comes first."""
    served: tuple[int, int, int] = (0, 0, 0)
    """Tokens that each class was served while classes competed."""
    holders: tuple[SlotHolder, ...] = ()
    """Most slots first."""
    held: int = 0
    """Slots held."""
    quotas: Mapping[str, QuotaUse] = field(default_factory=dict)
    """Use of the quotas of the tenants in line, and of those that used theirs last."""
    places: Mapping[str, PlaceInLine] = field(default_factory=dict)
    """Of the entries that were asked for and wait."""
