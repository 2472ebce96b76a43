"""Aliases stand for pools that there are."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import SettingsError
from cluster.settings import load_settings

TARGET = {"model": "demo"}


@pytest.mark.parametrize(
    ("name", "alias", "error"),
    [
        ("fast", {"targets": []}, r"aliases.fast.targets: .* at least 1 item, not 0"),
        ("fast", {"targets": [TARGET] * 17}, r"aliases.fast.targets: .* at most 16 items, not 17"),
        ("fast", {"targets": [{**TARGET, "weight": -1}]}, r"aliases.fast.targets.0.weight: must be at least 0, got -1"),
        ("fast", {"targets": [{**TARGET, "weight": 0}]}, "targets: at least one weight must be above 0, got only 0"),
        ("fast", {"targets": [TARGET, TARGET]}, r"targets\[1\].model: 'demo' is a target already"),
        ("fast", {"targets": [{"model": "dmeo"}]}, r".targets\[0\].model: must be one of the pools demo, got 'dmeo'"),
        ("fast", {"targets": [{"model": "fast"}]}, r".targets\[0\].model: must be one of the pools demo, got 'fast'"),
        ("fast", {"targets": [TARGET], "fallback": "big"}, "fast.fallback: must be one of the pools demo, got 'big'"),
        ("fast", {"targets": [TARGET], "shadow": {"model": "big"}}, "fast.shadow.model: must be one of the pools demo"),
        ("fast", {"targets": [TARGET], "shadow": {**TARGET, "share": 0}}, "shadow.share: must be above 0, got 0"),
        ("fast", {"targets": [TARGET], "sticky": "user"}, "aliases.fast.sticky: .*'session', 'tenant' or 'none'"),
        ("demo", {"targets": [TARGET]}, "aliases.demo: 'demo' is the name of a pool"),
    ],
)  # fmt: skip
def test_a_wrong_alias_is_an_error_with_its_place(name: str, alias: dict[str, Any], error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        load_settings(flags={"aliases": {name: alias}}, environ={})


def test_two_adapters_of_a_pool_are_two_targets() -> None:
    targets = [TARGET, {**TARGET, "adapter": "law"}, {**TARGET, "adapter": "tax", "weight": 0}]
    settings = load_settings(flags={"aliases": {"fast": {"targets": targets}}}, environ={})
    assert ["", "law", "tax"] == [each.adapter for each in settings.aliases["fast"].targets]
