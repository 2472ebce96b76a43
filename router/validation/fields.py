"""Checks of fields that several requests have."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from penstock.models import RequestClass
from penstock.v1 import types_pb2
from penstock.wire import duration_from_wire, request_class_from_wire
from router.validation.violations import Violations

MAX_MODEL_BYTES = 256
MAX_ADAPTER_BYTES = 256
_MAX_DURATION_S = 315_576_000_000
"""The largest valid google.protobuf.Duration: 10,000 years."""


def check_class(found: Violations, field: str, number: types_pb2.RequestClass.ValueType) -> RequestClass:
    """Check a class and convert it."""
    try:
        return request_class_from_wire(number)
    except ValueError:
        found.add(field, f"must be a known class, got {number}")
        return RequestClass.STANDARD


def check_duration(found: Violations, field: str, wire: Duration) -> float:
    """Check a duration and convert it to seconds."""
    seconds, nanos = wire.seconds, wire.nanos
    if abs(seconds) > _MAX_DURATION_S or abs(nanos) > 999_999_999 or seconds * nanos < 0:
        found.add(field, f"must be a valid duration, got seconds {seconds} and nanos {nanos}")
    return duration_from_wire(wire)


def check_queue_timeout(found: Violations, field: str, wire: Duration) -> float:
    """Check the longest wait in line and convert it to seconds."""
    seconds = check_duration(found, field, wire)
    if seconds <= 0:
        found.add(field, f"must be above 0 s, got {seconds:g} s")
    return seconds
