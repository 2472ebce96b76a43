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
