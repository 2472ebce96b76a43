"""Way of a request from the name that its caller used to a pool."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class WayKind(enum.Enum):
    """Reason why a pool gets the request of an alias."""

    TARGET = "target"
    FALLBACK = "fallback"
    SHADOW = "shadow"


@dataclass(frozen=True, slots=True)
class Route:
    """Pool and adapter that serve a request."""

    pool: str
    adapter: str = ""
    """LoRA adapter; empty for the one that the request names."""
    kind: WayKind = WayKind.TARGET


@dataclass(frozen=True, slots=True)
class Way:
    """How a request has come to its pool."""

    alias: str = ""
    """Name that its caller used; empty where that is the pool's own."""
    request_id: str = ""
    """Id that a new request gets; empty for any."""
    ready_only: bool = False
    """Whether the pool must have a replica that takes work, because another pool has one."""
    goes_on: bool = False
    """Whether another pool is asked if this one refuses, so that the request is not refused yet."""


DIRECT = Way()
