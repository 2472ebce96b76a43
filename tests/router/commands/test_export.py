"""Usage and costs as CSV."""

from __future__ import annotations

import csv
import datetime
import io

from penstock import Budget, CostLine, GpuTime, UsageLine
from router.commands.export import rows_of, write_csv, write_focus
from router.commands.usage import budget_text

DAY = datetime.date(2026, 1, 31)
MANDATORY = {
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd"),
    *("ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity"),
    *("PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName"),
}
"""Columns that FOCUS 1.2 wants in every file."""


def hour(number: int) -> datetime.datetime:
    return datetime.datetime(2026, 1, 31, number, tzinfo=datetime.UTC)


def used(tenant: str, at: int | None = None) -> UsageLine:
    return UsageLine(DAY, "large", tenant, 3, 40, 50, 10, 72.0, 1.5, None if at is None else hour(at))


def cost(at: int, idle: float) -> CostLine:
    nothing, spare = GpuTime(0.0, 0.0), GpuTime(idle, idle / 1000)
    total = GpuTime(72.0 + idle, (72.0 + idle) / 1000)
    return CostLine(
        hour(at), "large", total, GpuTime(72.0, 0.072), nothing, spare, nothing, nothing, nothing, nothing, 1.5
    )


def read(text: io.StringIO) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.getvalue())))


def test_days_have_their_hours_of_unallocated_time_together() -> None:
    text = io.StringIO()
    write_csv(rows_of([used("acme"), used('a "b", c')], [cost(3, 10.0), cost(4, 20.0)], by_hour=False), text)
    rows = read(text)
    assert [("acme", "requests"), ('a "b", c', "requests"), ("", "idle")] == sorted(
        ((row["tenant"], row["kind"]) for row in rows), key=lambda each: (not each[0], each[0] != "acme")
    )
    idle = rows[-1]
    assert ("30.0", "2026-01-31T00:00:00Z", "2026-02-01T00:00:00Z") == (
        idle["gpu_seconds"], idle["period_start"], idle["period_end"],
    )  # fmt: skip
    assert 72.0 * 2 + 30.0 == sum(float(row["gpu_seconds"]) for row in rows)


def test_hours_stay_hours() -> None:
    text = io.StringIO()
    write_csv(rows_of([used("acme", 3)], [cost(3, 10.0), cost(4, 20.0)], by_hour=True), text)
    assert [
        ("2026-01-31T03:00:00Z", "requests"), ("2026-01-31T03:00:00Z", "idle"), ("2026-01-31T04:00:00Z", "idle"),
    ] == [(row["period_start"], row["kind"]) for row in read(text)]  # fmt: skip


def test_focus_has_its_columns_and_explains_who_and_what() -> None:
    text = io.StringIO()
    write_focus(rows_of([used("acme")], [cost(3, 36.0)], by_hour=False), text, currency="EUR", provider="Our Company")
    ours, idle = read(text)
    assert set(ours) >= MANDATORY
    assert sorted(name for name in ours if not name.startswith("x_")) == [
        name for name in ours if not name.startswith("x_")
    ]
    assert ("acme", "1.5", "90", "Tokens", "0.02", "GPU-Hours") == (
        ours["SubAccountId"], ours["BilledCost"], ours["ConsumedQuantity"], ours["ConsumedUnit"],
        ours["PricingQuantity"], ours["PricingUnit"],
    )  # fmt: skip
    assert ("", "idle", "", "0.01", "Accelerators without work in pool large") == (
        idle["SubAccountId"], idle["x_Kind"], idle["ConsumedQuantity"], idle["PricingQuantity"],
        idle["ChargeDescription"],
    )  # fmt: skip
    assert ("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", "EUR", "Our Company") == (
        ours["BillingPeriodStart"], ours["BillingPeriodEnd"], ours["BillingCurrency"], ours["InvoiceIssuerName"],
    )  # fmt: skip


def test_a_file_without_rows_has_a_header() -> None:
    for write in (write_csv, lambda rows, to: write_focus(rows, to, currency="EUR", provider="x")):
        text = io.StringIO()
        write([], text)
        assert 1 == len(text.getvalue().splitlines())


def test_a_budget_shows_its_part_and_when_it_renews() -> None:
    renews = datetime.datetime(2026, 2, 1, tzinfo=datetime.UTC)
    text = budget_text(Budget("large", "acme", "cost_per_month", 200.0, 150.0, renews)).plain
    assert "budget of acme in large: 150.0000 of 200.0000 (75%) of this month, renews 2026-02-01 00:00 UTC" == text
