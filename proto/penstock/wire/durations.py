"""Conversion of lengths of time: seconds in Python, `google.protobuf.Duration` on the wire; and of moments."""

from __future__ import annotations

import datetime

from google.protobuf.duration_pb2 import Duration

_NANOS = 1_000_000_000


def duration_to_wire(seconds: float) -> Duration:
    """Convert finite seconds, rounded to nanoseconds; negative values have their sign in both fields."""
    found = Duration()
    set_duration(found, seconds)
    return found


def set_duration(field: Duration, seconds: float) -> None:
    """Write seconds into a field of a message, as `duration_to_wire` does. The field is then present, also with 0.

    Where a message has many, this takes half the time: nothing is made that has to be copied.
    """
    nanos = round(seconds * _NANOS)
    if nanos < 0:
        whole, rest = divmod(-nanos, _NANOS)
        field.seconds, field.nanos = -whole, -rest
    else:
        field.seconds, field.nanos = divmod(nanos, _NANOS)


def duration_from_wire(duration: Duration) -> float:
    """Convert to seconds; an absent message is 0."""
    return duration.seconds + duration.nanos / _NANOS


def moment_from_wire(ms: int) -> datetime.datetime:
    """Convert milliseconds since the Unix epoch."""
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
