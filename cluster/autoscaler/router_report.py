"""Counters of a pool's requests that a router reports with its heartbeats. They count up from the router's start, so a
lost report loses nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import chain

import msgpack

from cluster.announced.arrivals import TenantCounts
from cluster.queue.heartbeats import PoolView
from penstock.models import RequestClass

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class ClassCounts:
    """Counters of one class."""

    requests: float = 0.0
    """Requests that arrived, choices counted one by one, with any outcome."""
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    """Prompt tokens that are likely to be found in a prefix cache."""
    output_tokens: float = 0.0
    """Output tokens that the requests are likely to produce."""
    judged: float = 0.0
    """Requests with an SLO that ended, or were refused because of missing room."""
    met: float = 0.0
    """Judged requests that were served within their SLO."""


Counts = dict[RequestClass, ClassCounts]


@dataclass(frozen=True, slots=True)
class JobWork:
    """Remaining work of a job that a router feeds. Its items are not in the counters: a feeder sends them as fast as
    there is room, so they would make any number of replicas look full.
    """

    request_class: RequestClass
    items: int
    """Items without a result."""
    in_flight: int
    """Items without a result that wait or run."""
    left_s: float
    """Time until the job expires, at least 0."""
    prompt_tokens: float = 0.0
    """Mean of the items that have a result, like the next two; all 0 before the first result."""
    cached_tokens: float = 0.0
    output_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """Report of one router."""

    counts: Counts
    jobs: tuple[JobWork, ...] = ()
    tenants: Mapping[str, TenantCounts] = field(default_factory=dict)
    """Counters of the tenants who have announced load."""


def empty_counts() -> Counts:
    """Return counters that are all 0."""
    return {request_class: ClassCounts() for request_class in RequestClass}


def pack_report(
    counts: Counts, jobs: Sequence[JobWork] = (), tenants: Mapping[str, TenantCounts] | None = None
) -> bytes:
    rows = [astuple(counts[request_class]) for request_class in RequestClass]
    report: list[object] = [rows, [astuple(job) for job in jobs]]
    if tenants:
        # Left out without any: an autoscaler of the last release reads no third part.
        report.append({tenant: astuple(own) for tenant, own in tenants.items()})
    return bytes(msgpack.packb(report))


def unpack_report(report: bytes) -> Report:
    """Read what `pack_report` wrote.

    Raises:
        ValueError: the bytes are anything else.
    """
    try:
        rows, jobs, *more = msgpack.unpackb(report)
        counts = {request_class: ClassCounts(*row) for request_class, row in zip(RequestClass, rows, strict=True)}
        tenants = {str(tenant): TenantCounts(*own) for tenant, own in (more[0] if more else {}).items()}
        finite = all(map(math.isfinite, chain.from_iterable([*rows, *map(astuple, tenants.values())])))
        found = Report(counts, tuple(JobWork(RequestClass(number), *rest) for number, *rest in jobs), tenants)
    except (TypeError, ValueError, AttributeError, msgpack.UnpackException) as error:
        raise ValueError(f"no report of a router: {error}") from error
    if not finite:
        raise ValueError("no report of a router: a counter is no number")
    return found


def read_reports(pool: str, view: PoolView) -> dict[str, Report]:
    """Return the reports that can be read, by router."""
    reports = {}
    for one in view.reports:
        try:
            reports[one.router_id] = unpack_report(one.report)
        except ValueError:
            # The router runs a newer version.
            _LOG.warning("autoscaler.report_unread", extra={"pool": pool, "router": one.router_id})
    return reports


class UnreadReports:
    """Routers of a pool whose reports can't be read, because they run another version."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        """Pool time in milliseconds."""

    def aged(self, view: PoolView, read: Mapping[str, Report]) -> PoolView:
        """Return the view in which reports that can't be read are as old as their router's last readable one. Their
        requests are missing, and must not look like requests that no longer come.
        """
        now = view.time_ms
        unread = [one.router_id for one in view.reports if one.router_id not in read]
        self._since = {name: min(now, self._since.get(name, now)) for name in unread}
        aged = (replace(one, age_ms=max(one.age_ms, now - self._since.get(one.router_id, now))) for one in view.reports)
        return replace(view, reports=tuple(aged))

    @property
    def troubles(self) -> list[str]:
        """Sentences about them."""
        return [f"the report of router {name} can't be read: it runs another version" for name in self._since]
