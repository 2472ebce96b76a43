"""Renders the chart, each set of values once."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

import yaml

from k8s.render.binaries import run
from k8s.render.generated import CHART, RELEASE

Object = dict[str, Any]
DIGESTS = ("--set=images.router.digest=sha256:" + "1" * 64, "--set=images.replica.digest=sha256:" + "2" * 64)
SCENARIOS = {
    "defaults": (),
    "production": (f"--values={CHART}/values-production.yaml", *DIGESTS),
    **{
        path.name.removesuffix("-values.yaml"): (f"--values={path}",)
        for path in sorted((CHART / "ci").glob("*-values.yaml"))
    },
}
"""Arguments of `helm template` by name."""


@functools.cache
def _rendered(arguments: tuple[str, ...]) -> list[Object]:
    text = run("helm", "template", RELEASE, str(CHART), "--namespace", RELEASE, *arguments)
    return parse(text)


def render(scenario: str = "defaults", *more: str) -> list[Object]:
    """Return the objects of a scenario, to keep: `more` are further arguments of `helm template`."""
    return copy.deepcopy(_rendered((*SCENARIOS[scenario], *more)))


def render_values(scenario: str, values: dict[str, Any]) -> list[Object]:
    """Render a scenario with further values."""
    return render(scenario, *(f"--set-json={key}={json.dumps(value)}" for key, value in values.items()))


def parse(text: str) -> list[Object]:
    """Read a stream of YAML documents."""
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def of_kind(objects: list[Object], kind: str, end: str = "") -> list[Object]:
    """Return the objects of a kind whose name ends so."""
    return [each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(end)]


def one(objects: list[Object], kind: str, end: str = "") -> Object:
    """Return the only such object."""
    (found,) = of_kind(objects, kind, end)
    return found
