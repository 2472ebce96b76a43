"""A pool's state from the states of its cells. Pure functions; each takes the cells' answers in order of the cells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from cluster.queue.entries import CostLine, GpuTime, HourUse, Mail, Mark, Marks, UsageLine
from cluster.queue.heartbeats import PoolView, ReplicaRecord, RouterReport
from cluster.queue.line import Line, QuotaUse, SlotHolder, TenantLine

Three = tuple[int, int, int]
_PAGE = b"cell "


def sum3(parts: Iterable[Three]) -> Three:
    """Add numbers by class."""
    found = [sum(numbers) for numbers in zip(*parts, strict=True)] or [0, 0, 0]
    return found[0], found[1], found[2]


def max3(parts: Iterable[Three]) -> Three:
    """Return the largest number of each class."""
    found = [max(numbers) for numbers in zip(*parts, strict=True)] or [0, 0, 0]
    return found[0], found[1], found[2]


def merge_mail(parts: Iterable[Mail]) -> Mail:
    """Put the mail of all cells together."""
    parts = list(parts)
    return Mail(
        tuple(grant for part in parts for grant in part.grants), tuple(order for part in parts for order in part.orders)
    )


def merge_replicas(parts: Iterable[Sequence[ReplicaRecord]]) -> tuple[ReplicaRecord, ...]:
    """Put the registries together. A replica that moves may be in two for a moment: the one where it takes work, or
    was heard of last, counts.
    """
    found = dict[str, ReplicaRecord]()
    for part in parts:
        for record in part:
            other = found.get(record.replica_id)
            if other is None or _newer(record, other):
                found[record.replica_id] = record
    return tuple(found[name] for name in sorted(found))


def _newer(one: ReplicaRecord, other: ReplicaRecord) -> bool:
    mine, others = one.windows.sequences > 0, other.windows.sequences > 0
    return mine > others if mine != others else one.heartbeat_age_ms < other.heartbeat_age_ms


def merge_views(parts: Sequence[PoolView]) -> PoolView:
    """Put the autoscaler's views together. Orders are those of cell 0."""
    reports = dict[str, RouterReport]()
    for part in parts:
        for report in part.reports:
            # A router tells each cell the same.
            known = reports.get(report.router_id)
            if known is None or report.age_ms < known.age_ms:
                reports[report.router_id] = report
    return replace(
        parts[0],
        time_ms=max(part.time_ms for part in parts),
        run_id="+".join(part.run_id for part in parts),
        replicas=merge_replicas(part.replicas for part in parts),
        reports=tuple(reports[name] for name in sorted(reports)),
        waiting=sum3(part.waiting for part in parts),
        longest_wait_ms=max3(part.longest_wait_ms for part in parts),
        running=sum(part.running for part in parts),
        routers=tuple(sorted({name for part in parts for name in part.routers})),
    )


def merge_known(found: Mapping[int, PoolView], known: Mapping[int, PoolView], cells: Collection[int]) -> PoolView:
    """Put the views of those cells that answer together with what is known of the others.

    Args:
        found: views of the cells that answer, at least one.
        known: newest view of each cell that ever answered, these included.
        cells: all cells.
    """
    now_ms = max(view.time_ms for view in found.values())
    elsewhere = {record.replica_id for view in found.values() for record in view.replicas}
    parts = [found[cell] if cell in found else _held(known[cell], now_ms, elsewhere) for cell in cells if cell in known]
    away = tuple(cell for cell in cells if cell not in found)
    return replace(merge_views(parts), away=away, unseen=len(parts) < len(cells))


def _held(last: PoolView, now_ms: int, elsewhere: Container[str]) -> PoolView:
    """Return what a cell that is away has, by its last view. Its replicas that are idle go `elsewhere`, and routers
    report to all cells.
    """
    passed_ms = max(0, now_ms - last.time_ms)
    kept = [record for record in last.replicas if record.replica_id not in elsewhere]
    return replace(
        last,
        replicas=tuple(replace(record, heartbeat_age_ms=record.heartbeat_age_ms + passed_ms) for record in kept),
        reports=(),
        routers=(),
        running=min(last.running, sum(record.sequences for record in kept)),
    )


def merge_usage(parts: Iterable[Sequence[UsageLine]], limit: int) -> tuple[UsageLine, ...]:
    """Add up the ledgers, at most `limit` lines."""
    found = defaultdict[tuple[int, str], list[UsageLine]](list)
    for part in parts:
        for line in part:
            found[line.day, line.tenant].append(line)
    return tuple(_usage(found[key]) for key in sorted(found)[:limit])


def _usage(lines: Sequence[UsageLine]) -> UsageLine:
    if len(lines) == 1:
        return lines[0]
    hours = defaultdict[int, list[HourUse]](list)
    for line in lines:
        for use in line.hours:
            hours[use.hour].append(use)
    return replace(
        lines[0],
        **_sums(lines, ("day", "tenant", "hours")),
        hours=tuple(replace(hours[hour][0], **_sums(hours[hour], ("hour",))) for hour in sorted(hours)),
    )


def _sums(values: Sequence[UsageLine] | Sequence[HourUse], besides: Iterable[str]) -> dict[str, Any]:
    """Add up the numbers of dataclasses, field by field."""
    names = [field.name for field in fields(values[0]) if field.name not in besides]
    return {name: sum(getattr(value, name) for value in values) for name in names}


def merge_costs(parts: Iterable[Sequence[CostLine]]) -> list[CostLine]:
    """Add up GPU time hour by hour."""
    found = defaultdict[int, list[CostLine]](list)
    for part in parts:
        for line in part:
            found[line.hour].append(line)
    return [_costs(found[hour]) for hour in sorted(found)]


def _costs(lines: Sequence[CostLine]) -> CostLine:
    if len(lines) == 1:
        return lines[0]
    kinds = [field.name for field in fields(CostLine) if field.name not in ("hour", "charged")]
    sums: dict[str, Any] = {kind: _time([getattr(line, kind) for line in lines]) for kind in kinds}
    return replace(lines[0], **sums, charged=sum(line.charged for line in lines))


def _time(times: Sequence[GpuTime]) -> GpuTime:
    return GpuTime(sum(time.gpu_seconds for time in times), sum(time.cost for time in times))


def merge_marks(parts: Sequence[Marks]) -> Marks:
    """Put the marks together; one that two cells have counts for as long as the longer of both."""
    found = dict[bytes, Mark]()
    for part in parts:
        for mark in part.marks:
            known = found.get(mark.content)
            if known is None or mark.left_ms > known.left_ms:
                found[mark.content] = mark
    return Marks(sum(part.count for part in parts), tuple(found[content] for content in sorted(found)))


def merge_lines(parts: Sequence[Line]) -> Line:
    """Put the lines together. Of a tenant in several cells the service is that where its turn is nearest."""
    lines = defaultdict[tuple[int, str], list[TenantLine]](list)
    holders = defaultdict[tuple[int, str], list[SlotHolder]](list)
    quotas = defaultdict[str, list[QuotaUse]](list)
    for part in parts:
        for line in part.lines:
            lines[line.request_class, line.tenant].append(line)
        for holder in part.holders:
            holders[holder.request_class, holder.tenant].append(holder)
        for tenant, use in part.quotas.items():
            quotas[tenant].append(use)
    merged = [_tenant_line(each) for each in lines.values()]
    slots = [replace(each[0], slots=sum(one.slots for one in each)) for each in holders.values()]
    listed = [sum(line.request_class == number for line in merged) for number in range(3)]
    return Line(
        time_ms=max(part.time_ms for part in parts),
        waiting=sum3(part.waiting for part in parts),
        tenants=max3([max3(part.tenants for part in parts), (listed[0], listed[1], listed[2])]),
        lines=tuple(sorted(merged, key=lambda line: (line.request_class, line.service, line.tenant))),
        served=sum3(part.served for part in parts),
        holders=tuple(sorted(slots, key=lambda each: (-each.slots, each.request_class, each.tenant))),
        held=sum(part.held for part in parts),
        quotas={tenant: _quota_use(each) for tenant, each in quotas.items()},
        places={name: place for part in parts for name, place in part.places.items()},
    )


def _tenant_line(lines: Sequence[TenantLine]) -> TenantLine:
    return replace(
        lines[0],
        waiting=sum(line.waiting for line in lines),
        oldest_ms=max(line.oldest_ms for line in lines),
        service=min(line.service for line in lines),
    )


def _quota_use(uses: Sequence[QuotaUse]) -> QuotaUse:
    if len(uses) == 1:
        return uses[0]
    return QuotaUse(
        tokens=sum(use.tokens for use in uses),
        tokens_per_minute=max(use.tokens_per_minute for use in uses),
        requests=sum(use.requests for use in uses),
        requests_per_minute=max(use.requests_per_minute for use in uses),
        open=sum(use.open for use in uses),
    )


def page(cell: int, inner: bytes) -> bytes:
    """Return where the next page of holdings begins."""
    return b"%b%d:%b" % (_PAGE, cell, inner)


def read_page(after: bytes) -> tuple[int, bytes]:
    """Return the cell of a page, and where it begins there."""
    if not after.startswith(_PAGE):
        # The pool had one cell when the first page was read.
        return 0, after
    number, _, inner = after.removeprefix(_PAGE).partition(b":")
    return int(number), inner
