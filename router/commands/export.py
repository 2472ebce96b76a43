"""Export of usage and costs as CSV, in our own columns or in those of the FinOps Open Cost and Usage Specification."""

from __future__ import annotations

import csv
import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from penstock.client import CostLine, UsageLine

UNALLOCATED = ("running", "idle", "standby", "starting", "draining", "lost")
"""Kinds of accelerator time that belong to no tenant."""
FOCUS_VERSION = "1.2"
_DESCRIPTIONS = {
    "running": "Accelerators of requests that had not ended",
    "idle": "Accelerators without work",
    "standby": "Accelerators of replicas that stand by",
    "starting": "Accelerators of replicas that start",
    "draining": "Accelerators of replicas that end",
    "lost": "Accelerators of work that was lost",
}


@dataclass(frozen=True, slots=True)
class ExportRow:
    """Use and cost of one tenant, or time of one unallocated kind, in one period. The names are the columns."""

    period_start: datetime.datetime
    period_end: datetime.datetime
    pool: str
    tenant: str
    """Empty for unallocated time."""
    kind: str
    """"requests", or one of `UNALLOCATED`."""
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    gpu_seconds: float
    cost: float


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_SAMPLE = ExportRow(_EPOCH, _EPOCH, "", "", "idle", 0, 0, 0, 0, 0.0, 0.0)
"""A row for the names of the columns."""


def rows_of(usage: Iterable[UsageLine], costs: Iterable[CostLine], *, by_hour: bool) -> list[ExportRow]:
    """Return rows in order of period, pool and tenant, unallocated ones last."""
    rows = [*_of_tenants(usage), *_unallocated(costs, by_hour=by_hour)]
    return sorted(rows, key=lambda row: (row.period_start, row.pool, not row.tenant, row.tenant))


def write_csv(rows: Sequence[ExportRow], to: TextIO) -> None:
    """Write a header and rows."""
    writer = csv.writer(to, lineterminator="\n")
    writer.writerow([field.name for field in fields(ExportRow)])
    for row in rows:
        start, end, *values = astuple(row)
        writer.writerow([_moment(start), _moment(end), *values])


def write_focus(rows: Sequence[ExportRow], to: TextIO, *, currency: str, provider: str) -> None:
    """Write a header and rows in FOCUS' columns.

    Args:
        rows: what to write.
        to: where to.
        currency: code of ISO 4217.
        provider: who runs the cluster and sends the bills.
    """
    sample = _focus(_SAMPLE, currency, provider)
    writer = csv.DictWriter(to, sorted(sample, key=lambda name: (name.startswith("x_"), name)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(_focus(row, currency, provider) for row in rows)


def _of_tenants(usage: Iterable[UsageLine]) -> Iterator[ExportRow]:
    for line in usage:
        day = datetime.datetime.combine(line.day, datetime.time(), datetime.UTC)
        start = line.hour or day
        length = datetime.timedelta(hours=1) if line.hour else datetime.timedelta(days=1)
        yield ExportRow(
            start,
            start + length,
            line.pool,
            line.tenant,
            "requests",
            line.requests,
            line.prompt_tokens,
            line.cached_tokens,
            line.output_tokens,
            line.gpu_seconds,
            line.cost,
        )


def _unallocated(costs: Iterable[CostLine], *, by_hour: bool) -> Iterator[ExportRow]:
    sums: dict[tuple[datetime.datetime, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for line in costs:
        start = line.hour if by_hour else line.hour.replace(hour=0)
        for kind in UNALLOCATED:
            time = getattr(line, kind)
            found = sums[start, line.pool, kind]
            found[0] += time.gpu_seconds
            found[1] += time.cost
    length = datetime.timedelta(hours=1) if by_hour else datetime.timedelta(days=1)
    for (start, pool, kind), (gpu_seconds, cost) in sums.items():
        if gpu_seconds or cost:
            yield ExportRow(start, start + length, pool, "", kind, 0, 0, 0, 0, gpu_seconds, cost)


def _focus(row: ExportRow, currency: str, provider: str) -> Mapping[str, object]:
    """Return the columns of a row. Those that are mandatory in FOCUS 1.2 are all here; empty ones may be null there."""
    month = row.period_start.replace(day=1, hour=0)
    next_month = (month + datetime.timedelta(days=32)).replace(day=1)
    ours = row.kind == "requests"
    what = f"Requests of tenant {row.tenant}" if ours else _DESCRIPTIONS[row.kind]
    tokens = row.prompt_tokens + row.output_tokens
    costs = dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), row.cost)
    parties = ("BillingAccountId", "BillingAccountName", "InvoiceIssuerName", "ProviderName", "PublisherName")
    return {
        **costs,
        **dict.fromkeys(parties, provider),
        "BillingCurrency": currency,
        "BillingPeriodEnd": _moment(next_month),
        "BillingPeriodStart": _moment(month),
        "ChargeCategory": "Usage",
        "ChargeClass": "",
        "ChargeDescription": f"{what} in pool {row.pool}",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": _moment(row.period_end),
        "ChargePeriodStart": _moment(row.period_start),
        "ConsumedQuantity": tokens if ours else "",
        "ConsumedUnit": "Tokens" if ours else "",
        "PricingQuantity": row.gpu_seconds / 3600,
        "PricingUnit": "GPU-Hours",
        "ResourceId": row.pool,
        "ResourceName": row.pool,
        "ResourceType": "Model pool",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "Penstock",
        "ServiceSubcategory": "Generative AI",
        "SubAccountId": row.tenant,
        "SubAccountName": row.tenant,
        "x_CachedTokens": row.cached_tokens,
        "x_GpuSeconds": row.gpu_seconds,
        "x_Kind": row.kind,
        "x_OutputTokens": row.output_tokens,
        "x_PromptTokens": row.prompt_tokens,
        "x_Requests": row.requests,
    }


def _moment(moment: datetime.datetime) -> str:
    return f"{moment.astimezone(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
