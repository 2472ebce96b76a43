"""The queue's settings are those with which it works."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import SettingsError
from cluster.settings import load_settings


def test_half_a_lease_must_not_pass_without_a_heartbeat() -> None:
    with pytest.raises(SettingsError, match=r"queue: .*lease_s must be at least 3 x heartbeat_s = 6, got 4\b"):
        load_settings(flags={"queue": {"lease_s": 4.0, "heartbeat_s": 2.0}}, environ={})


@pytest.mark.parametrize(("lease_s", "heartbeat_s"), [(0.3, 0.1), (4.0, 1.333), (60.0, 20.0)])
def test_a_third_of_a_lease_is_a_heartbeat(lease_s: float, heartbeat_s: float) -> None:
    queue = load_settings(flags={"queue": {"lease_s": lease_s, "heartbeat_s": heartbeat_s}}, environ={}).queue
    assert (queue.lease_s, queue.heartbeat_s) == (lease_s, heartbeat_s)


@pytest.mark.parametrize("place", [("tenants", "acme"), ("default_tenant",)], ids=".".join)
def test_a_weight_that_no_count_could_hold_is_refused(place: tuple[str, ...]) -> None:
    flags: dict[str, Any] = {"weight": 1e-9}
    for name in reversed(place):
        flags = {name: flags}
    with pytest.raises(SettingsError, match=rf"{'.'.join(place)}.weight: must be at least 0.001"):
        load_settings(flags=flags, environ={})


@pytest.mark.parametrize(
    "path",
    [
        *(f"tenants.acme.quota.{name}" for name in ("tokens_per_minute", "requests_per_minute", "concurrency")),
        *("default_tenant.pools.demo.tokens_per_minute", "default_tenant.max_waiting"),
        *("queue.max_waiting", "queue.max_waiting_per_tenant"),
    ],
)
def test_a_count_that_no_script_could_hold_is_refused(path: str) -> None:
    def flags(value: int) -> dict[str, Any]:
        tree: Any = value
        for name in reversed(path.split(".")):
            tree = {name: tree}
        return tree  # type: ignore[no-any-return]

    load_settings(flags=flags(10**12), environ={})
    with pytest.raises(SettingsError, match=rf"{path}: must be at most 1000000000000, got 10{{20}}"):
        load_settings(flags=flags(10**20), environ={})


def test_a_quarantine_that_no_script_could_hold_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"router.quarantine_s: must be at most 2592000, got 1e\+20"):
        load_settings(flags={"router": {"quarantine_s": 1e20}}, environ={})
