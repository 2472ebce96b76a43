"""Conversion of lengths of time: seconds in Python, `google.protobuf.Duration` on the wire."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

_NANOS = 1_000_000_000


def duration_to_wire(seconds: float) -> Duration:
    """Convert finite seconds, rounded to nanoseconds; negative values have their sign in both fields."""
    nanos = round(abs(seconds) * _NANOS)
    whole, rest = divmod(nanos, _NANOS)
    sign = -1 if seconds < 0 else 1
    return Duration(seconds=sign * whole, nanos=sign * rest)


def duration_from_wire(duration: Duration) -> float:
    """Convert to seconds; an absent message is 0."""
    return duration.seconds + duration.nanos / _NANOS
