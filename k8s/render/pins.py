"""The pins that a router needs for its image, selected from all pins."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
IMAGE = {"extra": "", "python_version": "3.12", "python_full_version": "3.12.0"}


def normal(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name.lower())


def pins(file: str) -> dict[str, str]:
    """Read a file of pins, by name."""
    lines = (ROOT / "requirements" / file).read_text(encoding="utf-8").splitlines()
    return {normal(line.partition("==")[0]): line for line in lines if line}


def _project(folder: Path) -> dict[str, Any]:
    """Read a distribution's description."""
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def router_pins() -> str:
    """Return the pins of penstock-llm[router,otel] and its dependencies."""
    known = pins("cpu.txt")
    server, client = _project(ROOT), _project(ROOT / "proto")
    extras = server["optional-dependencies"]
    needed = [*server["dependencies"], *extras["router"], *extras["otel"], *client["dependencies"]]
    # The client is built from this repository, as the server is.
    todo = [each for each in map(Requirement, needed) if each.name != client["name"]]
    found: dict[str, str] = {}
    while todo:
        requirement = todo.pop()
        name = normal(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate(IMAGE)):
            continue
        found[name] = known[name]
        todo += [Requirement(text) for text in requires(name) or []]
    return "\n".join(sorted(found.values())) + "\n"
