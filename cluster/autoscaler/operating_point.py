"""Stored form of an operating point, which heartbeats also bring to routers and replicas."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass

from cluster.autoscaler.store import ControlStore
from penstock.values.slo import ClassSlo, OperatingPoint

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PointRecord:
    """Operating point that an admin set while the cluster ran."""

    point: OperatingPoint | None
    """Operating point; None returns to that of the settings."""
    tenant: str = ""
    """Tenant of the admin."""
    at_ms: int = 0
    """Time of the change, milliseconds since the Unix epoch."""

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> PointRecord:
        """Read what `to_bytes` wrote.

        Raises:
            ValueError, KeyError, TypeError: the text is anything else.
        """
        fields = json.loads(text)
        point = fields["point"]
        if point is not None:
            for name in ("interactive", "standard", "batch"):
                point[name] = ClassSlo(**point[name])
            point = OperatingPoint(**point)
        return cls(point, str(fields["tenant"]), int(fields["at_ms"]))


def who_set(stored: bytes) -> dict[str, object]:
    """Return tenant and time of a stored point, for logs; nothing if it sets no point or can't be read."""
    try:
        found = PointRecord.from_bytes(stored)
    except (ValueError, KeyError, TypeError):
        return {}
    return {} if found.point is None else {"tenant": found.tenant, "at_ms": found.at_ms}


def point_in_force(stored: bytes | None, default: OperatingPoint) -> OperatingPoint:
    """Return a pool's operating point: the stored one, or `default` if none is stored or it can't be read."""
    if stored is None:
        return default
    try:
        return PointRecord.from_bytes(stored).point or default
    except (ValueError, KeyError, TypeError):
        # Written by a newer version.
        return default


class KnownPoint:
    """Stored operating point of a pool as one autoscaler knows it. It outlives a store that loses its data."""

    def __init__(self, pool: str, store: ControlStore) -> None:
        self._pool = pool
        self._store = store
        self._point: bytes | None = None

    def hear(self, point: bytes | None) -> None:
        """Take what the store has; None for nothing."""
        if point is not None and point != self._point:
            self._point = point
            if who := who_set(point):
                _LOG.warning("autoscaler.point_in_place_of_settings", extra={"pool": self._pool, **who})

    async def now(self, stored: bytes | None) -> bytes | None:
        """Return the point, where the store has this one. Store it again if the store lost it.

        Raises:
            QueueUnavailableError: the store does not answer.
        """
        if stored is None and self._point is not None:
            await self._store.set_point(self._point, if_missing=True)
        self.hear(stored)
        return self._point
