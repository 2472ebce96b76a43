"""What an entry of the settings says, and which contents mean the same."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.settings import Settings
from router.registry.kinds import ALIAS, TENANT

GIVEN: dict[str, Any] = {
    "pools": {"demo": {}},
    "tenants": {"small": {"quota": {"concurrency": 1}}},
    "aliases": {"fast": {"targets": [{"model": "demo", "weight": 95}]}},
}


def test_settings_that_were_handed_over_in_full_say_what_was_given() -> None:
    """`penstock up` gives its routers every field."""
    handed_over = Settings.model_validate(Settings.model_validate(GIVEN).model_dump(mode="json"))
    assert GIVEN["tenants"]["small"] == TENANT.declared_fields(handed_over.tenants["small"])
    assert GIVEN["aliases"]["fast"] == ALIAS.declared_fields(handed_over.aliases["fast"])


@pytest.mark.parametrize(
    ("expected", "one", "other"),
    [
        (True, {"weight": 2}, {"weight": 2.0, "quota": {"mode": "settled"}}),
        (True, {}, {"weight": 1}),
        (True, None, None),
        (False, {}, None),
        (False, {"weight": 2}, {"weight": 3}),
        (False, {"weight": 2}, {"weight": 2, "quota": {"concurrency": 1}}),
        # Of another release.
        (False, {"weight": 2}, {"weight": 2, "new": 1}),
    ],
)
def test_defaults_make_no_difference(expected: bool, one: Any, other: Any) -> None:
    assert expected is TENANT.same("acme", one, other) is TENANT.same("acme", other, one)
