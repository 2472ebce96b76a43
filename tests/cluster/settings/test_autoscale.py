"""Settings of autoscaling: off by default, and never without bounds."""

from __future__ import annotations

import pytest

from cluster.autoscaler.autoscaler import scaled_pools
from cluster.autoscaler.own_settings import slow_rules
from cluster.control.replica_rules import SlowRules
from cluster.errors import SettingsError
from cluster.settings import AutoscaleSettings, Settings, load_settings


def load(**autoscale: object) -> Settings:
    return load_settings(flags={"pools": {"large": {"autoscale": autoscale}}}, environ={})


def test_no_pool_is_scaled_unless_it_asks_for_it() -> None:
    assert [] == scaled_pools(load().pools)
    assert ["large"] == scaled_pools(load(mode="advisory", max_replicas=2).pools)


def test_a_pool_that_is_scaled_needs_a_bound() -> None:
    with pytest.raises(SettingsError, match="max_replicas must be set where mode is 'active'"):
        load(mode="active")
    with pytest.raises(SettingsError, match="max_replicas must be at least min_replicas = 3, got 2"):
        load(mode="active", min_replicas=3, max_replicas=2)


def test_the_defaults_are_the_policys_own() -> None:
    assert SlowRules() == slow_rules(AutoscaleSettings())


@pytest.mark.parametrize("section", ["control", "autoscale"])
def test_false_is_off(section: str) -> None:
    """YAML reads an off without quotes as false; true is a mistake."""

    def mode(value: bool) -> object:
        tree = {"pools": {"large": {section: {"mode": value}}}}
        return getattr(load_settings(flags=tree, environ={}).pools["large"], section).mode

    assert "off" == mode(False)
    with pytest.raises(SettingsError, match=rf"{section}\.mode"):
        mode(True)
