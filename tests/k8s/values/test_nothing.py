"""Values that are null: what has nothing to be without it is refused by name, and the rest is as if it were empty."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.render.generated import CHART
from tests.k8s.charts import SCENARIOS, Object, render, render_values

pytestmark = pytest.mark.slow

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


MEANT = ("securityContext", "containerSecurityContext")
"""Values for which null has a meaning of its own."""


def nothing(value: dict[str, Any]) -> dict[str, Any]:
    """Return null for each value that is empty, and no other ones."""
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            found[key] = nothing(inner)
        elif inner in ("", [], {}) and key not in MEANT:
            found[key] = None
    return found


def test_null_is_as_empty(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(nothing(VALUES)), encoding="utf-8")
    assert 100 < file.read_text(encoding="utf-8").count("null")
    # What a scenario says comes after, and wins.
    for scenario in SCENARIOS:
        assert _same(render(scenario)) == _same(render("defaults", f"--values={file}", *SCENARIOS[scenario]))


def _same(objects: list[Object]) -> list[Object]:
    """Leave out what is made by chance."""
    return [each for each in objects if each["kind"] != "Secret"]


NEEDED = (
    "router", "pods", "images", "pools", "images.router", "images.digests", "auth.serviceAccounts",
    "router.http.service", "clusterDomain", "secrets.cluster.key",
)  # fmt: skip


@pytest.mark.parametrize("path", NEEDED)
def test_a_section_or_value_that_is_needed_is_named(path: str) -> None:
    """Such as one that has only comments below it."""
    with pytest.raises(subprocess.CalledProcessError) as error:
        render_values("defaults", {path: None})
    *parents, last = path.split(".")
    assert f"at '{''.join(f'/{part}' for part in parents)}': missing property '{last}'" in error.value.stderr
