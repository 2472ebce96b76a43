"""Quotas name pools that there are."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import SettingsError
from cluster.settings import load_settings


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ({"tenants": {"acme": {"pools": {"dmeo": {}}}}}, "tenants.acme"),
        ({"default_tenant": {"pools": {"dmeo": {}}}}, "default_tenant"),
    ],
)  # fmt: skip
def test_a_quota_of_a_pool_that_is_not_there_is_an_error(section: dict[str, Any], place: str) -> None:
    with pytest.raises(SettingsError, match=rf"{place}.pools.dmeo: must be one of the pools demo"):
        load_settings(flags=section, environ={})


def test_a_quota_of_a_pool_that_is_there_counts() -> None:
    tenant = {"pools": {"demo": {"tokens_per_minute": 1000}}}
    settings = load_settings(flags={"tenants": {"acme": tenant}}, environ={})
    assert 1000 == settings.tenants["acme"].pools["demo"].tokens_per_minute


@pytest.mark.parametrize(
    ("days", "tenant", "error"),
    [
        (0, {"quota": {"cost_per_day": 1.0}}, "tenants.acme.quota.cost_per_day: queue.ledger_days must be at least 1"),
        (30, {"quota": {"cost_per_month": 1.0}}, "tenants.acme.quota.cost_per_month: .* at least 31 for it, got 30"),
        (30, {"pools": {"demo": {"cost_per_month": 1.0}}}, "tenants.acme.pools.demo.cost_per_month: .* at least 31"),
    ],
)  # fmt: skip
def test_a_budget_needs_a_ledger_that_covers_it(days: int, tenant: dict[str, Any], error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        load_settings(flags={"queue": {"ledger_days": days}, "tenants": {"acme": tenant}}, environ={})
    load_settings(flags={"queue": {"ledger_days": 31}, "tenants": {"acme": tenant}}, environ={})
