"""What a router counts of a pool's requests and reports with its heartbeats. Everything counts up from its start, so a
lost report loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import msgpack

from penstock.models import RequestClass


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


@dataclass(frozen=True, slots=True)
class JobWork:
    """Is what is left of a job that a router feeds. Its items are not among the counts: a feeder sends them as fast as
    there is room, so they would make any number of replicas look full.
    """

    request_class: RequestClass
    items: int
    """Without a result."""
    in_flight: int
    """Of these, those that wait or run."""
    left_s: float
    """Until the job expires; not below 0."""
    prompt_tokens: float = 0.0
    """Mean of the items that have a result, as the next two; all 0 before the first."""
    cached_tokens: float = 0.0
    output_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """Is one router's report."""

    counts: Counts
    jobs: tuple[JobWork, ...] = ()


def empty_counts() -> Counts:
    """Begin with nothing."""
    return {request_class: ClassCounts() for request_class in RequestClass}


def pack_report(counts: Counts, jobs: Sequence[JobWork] = ()) -> bytes:
    """Write a report."""
    rows = [astuple(counts[request_class]) for request_class in RequestClass]
    return bytes(msgpack.packb([rows, [astuple(job) for job in jobs]]))


def unpack_report(report: bytes) -> Report:
    """Read a report; raises ValueError for anything else."""
    try:
        rows, jobs = msgpack.unpackb(report)
        counts = {request_class: ClassCounts(*row) for request_class, row in zip(RequestClass, rows, strict=True)}
        return Report(counts, tuple(JobWork(RequestClass(number), *rest) for number, *rest in jobs))
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"no report of a router: {error}") from error
