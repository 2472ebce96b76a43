"""`kubectl kustomize` builds what `helm template` renders, object by object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k8s.render.binaries import run
from k8s.render.generated import ROOT, template
from k8s.render.overlays import OVERLAYS, identity
from router.identity.keys_file import read_keys_file
from tests.k8s.charts import Object, parse
from tests.k8s.rules import RULES

pytestmark = pytest.mark.slow

OWN = {"Namespace", "Secret"}
"""What an overlay has beside the chart's objects."""


def build(folder: Path) -> dict[Any, Object]:
    return {identity(each): each for each in parse(run("kubectl", "kustomize", str(folder)))}


def rendered(overlay: str = "") -> dict[Any, Object]:
    return {identity(each): each for each in parse(template(overlay))}


def test_the_base_is_the_charts_defaults() -> None:
    assert rendered() == build(ROOT / "kustomize" / "base")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_the_chart_with_its_values(overlay: str) -> None:
    built = build(ROOT / "kustomize" / "overlays" / overlay)
    assert rendered(overlay) == {key: each for key, each in built.items() if key[0] not in OWN}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_keeps_the_rules(overlay: str) -> None:
    objects = list(build(ROOT / "kustomize" / "overlays" / overlay).values())
    assert {} == {name: found for name, rule in RULES.items() if (found := rule(objects))}


def test_a_drift_would_be_seen() -> None:
    built = build(ROOT / "kustomize" / "base")
    built["Deployment", "penstock-router"]["spec"]["replicas"] = 7
    assert rendered() != built


def test_dev_has_every_secret_that_the_notes_ask_for() -> None:
    built = build(ROOT / "kustomize" / "overlays" / "dev")
    names = {name for kind, name in built if kind == "Secret"}
    assert {"penstock-cluster", "penstock-ray-token", "penstock-redis", "penstock-keys"} == names
    assert read_keys_file(ROOT / "kustomize" / "overlays" / "dev" / "keys.toml").keys
