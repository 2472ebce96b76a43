"""Conversion of seconds that a caller gives."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from penstock.values.fields import check_seconds, shown
from penstock.wire import duration_to_wire

LONGEST_S = 315_576_000_000
"""Longest time that a `google.protobuf.Duration` holds, in seconds: 10,000 years."""


def duration_field(name: str, seconds: float) -> Duration:
    """Convert a field's seconds. The router checks whether they are in range.

    Raises:
        ValueError: they are not finite, or more than a duration holds; names the field.
        TypeError: they are no number; names the field.
    """
    check_seconds(name, seconds)
    if abs(seconds) > LONGEST_S:
        raise ValueError(f"{name}: must be finite seconds, at most {LONGEST_S:g}, got {shown(seconds)}; None sets none")
    return duration_to_wire(seconds)
