"""An operating point as it is stored, and as heartbeats bring it to routers and replicas."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from penstock.values.slo import ClassSlo, OperatingPoint


@dataclass(frozen=True, slots=True)
class PointRecord:
    """Is what somebody asked for while the cluster ran."""

    point: OperatingPoint | None
    """None takes the settings' again."""
    tenant: str = ""
    """Who asked."""
    at_ms: int = 0
    """When, milliseconds since the Unix epoch."""

    def to_bytes(self) -> bytes:
        """Write as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> PointRecord:
        """Read what `to_bytes` wrote; raises ValueError, KeyError or TypeError for anything else."""
        fields = json.loads(text)
        point = fields["point"]
        if point is not None:
            for name in ("interactive", "standard", "batch"):
                point[name] = ClassSlo(**point[name])
            point = OperatingPoint(**point)
        return cls(point, str(fields["tenant"]), int(fields["at_ms"]))


def who_set(stored: bytes) -> dict[str, object]:
    """Return who asked for a stored point and when, for logs; nothing where none is in force."""
    try:
        found = PointRecord.from_bytes(stored)
    except (ValueError, KeyError, TypeError):
        return {}
    return {} if found.point is None else {"tenant": found.tenant, "at_ms": found.at_ms}


def point_in_force(stored: bytes | None, default: OperatingPoint) -> OperatingPoint:
    """Return what a pool is run for; the settings' where nothing else was asked for, or nobody can read what was."""
    if stored is None:
        return default
    try:
        return PointRecord.from_bytes(stored).point or default
    except (ValueError, KeyError, TypeError):
        # Written by a newer version.
        return default
