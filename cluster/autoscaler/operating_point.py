"""Stored form of an operating point, which heartbeats also bring to routers and replicas."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from penstock.values.slo import ClassSlo, OperatingPoint


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
