"""Translation of the answer of the script `show_line`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.queue.line import Line, PlaceInLine, QuotaUse, SlotHolder, TenantLine
from penstock.models import RequestClass


def read_line(reply: Sequence[Any]) -> Line:
    """Read the answer of `show_line`."""
    time_ms, waiting, tenants, lines, served, holding, seen, held, used, ahead = reply
    share = held / seen if seen else 1.0
    holders = [
        SlotHolder(RequestClass(number), tenant.decode(), max(1, round(slots * share)))
        for number, tenant, slots in _groups(holding, 3)
    ]
    return Line(
        time_ms=time_ms,
        waiting=tuple(waiting),
        tenants=tuple(tenants),
        lines=tuple(
            TenantLine(RequestClass(number), tenant.decode(), count, oldest_ms, service, weight / 1000)
            for number, tenant, count, oldest_ms, service, weight in _groups(lines, 6)
        ),
        served=tuple(served),
        holders=tuple(sorted(holders, key=lambda each: (-each.slots, each.request_class, each.tenant))),
        held=held,
        quotas={tenant.decode(): QuotaUse(*numbers) for tenant, *numbers in _groups(used, 6)},
        places={name.decode(): PlaceInLine(own, passed) for name, own, passed in _groups(ahead, 3)},
    )


def _groups(flat: Sequence[Any], size: int) -> Sequence[Sequence[Any]]:
    return [flat[at : at + size] for at in range(0, len(flat), size)]
