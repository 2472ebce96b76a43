"""What a router counts of a pool's requests and reports with its heartbeats. Everything counts up from its start, so a
lost report loses nothing.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import msgpack

from cluster.models import RequestClass


@dataclass(slots=True)
class ClassCounts:
    """Counts the requests of one class."""

    requests: float = 0.0
    """That arrived, choices counted one by one, whatever became of them."""
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    """Prompt tokens that are likely to be found in a prefix cache."""
    output_tokens: float = 0.0
    """That they are likely to produce."""
    judged: float = 0.0
    """Requests with an SLO that ended, or were turned away for want of room."""
    met: float = 0.0
    """Of these, served within their SLO."""


Counts = dict[RequestClass, ClassCounts]


def empty_counts() -> Counts:
    """Begin with nothing."""
    return {request_class: ClassCounts() for request_class in RequestClass}


def pack_counts(counts: Counts) -> bytes:
    """Write a report."""
    return bytes(msgpack.packb([astuple(counts[request_class]) for request_class in RequestClass]))


def unpack_counts(report: bytes) -> Counts:
    """Read a report; raises ValueError for anything else."""
    try:
        rows = msgpack.unpackb(report)
        return {request_class: ClassCounts(*row) for request_class, row in zip(RequestClass, rows, strict=True)}
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"no report of a router: {error}") from error
