"""Checks of what a pool's settings name, before an engine starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.bootstrap.models import check_model, hub_models
from cluster.errors import SettingsError
from cluster.settings import PoolSettings, Settings
from cluster.sources import ModelSource, SourceKind


def pool(**settings: Any) -> PoolSettings:
    return PoolSettings.model_validate({"model": "s3://bucket/m", **settings})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"model": "/nowhere/m"}, "pools.a.model: there is no folder /nowhere/m"),
        (
            {"vllm": {"speculative": {"method": "draft_model", "model": "./draft"}}},
            r"pools.a.vllm.speculative.model: there is no folder ./draft",
        ),
        (
            {"vllm": {"lora_modules": {"poet": "~/nowhere/poet"}}},
            r"pools.a.vllm.lora_modules.poet: there is no folder ~/nowhere/poet",
        ),
    ],
)
def test_a_missing_folder_is_named_with_its_setting(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        check_model("a", pool(**settings))


def test_what_is_elsewhere_is_not_looked_for_on_this_machine(tmp_path: Path) -> None:
    check_model("a", pool())
    check_model("a", pool(model="org/m", vllm={"lora_modules": {"poet": "gs://bucket/poet"}}))
    check_model("a", pool(engine="sim", vllm={"lora_modules": {"poet": "/nowhere"}}))
    check_model("a", PoolSettings())


def test_all_that_comes_from_a_hub_is_looked_up_there() -> None:
    vllm = {
        "speculative": {"method": "draft_model", "model": "org/draft"},
        "lora_modules": {"poet": "org/poet@v2", "near": "/adapters/near"},
    }
    tree = {"a": {"model": "org/m", "revision": "abc", "vllm": vllm}, "a.b": {"model": "s3://bucket/m"}, "c": {}}
    found = hub_models(Settings.model_validate({"pools": tree}))
    assert [
        ("a", "model", ModelSource("org/m", SourceKind.HUB, "abc")),
        ("a", "vllm.speculative.model", ModelSource("org/draft", SourceKind.HUB)),
        ("a", "vllm.lora_modules.poet", ModelSource("org/poet", SourceKind.HUB, "v2")),
    ] == found
