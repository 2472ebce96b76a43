"""Picks from all pins those that a router needs, for its image."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

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


def router_pins() -> str:
    """Return the pins of penstock[router] and all it needs."""
    known = pins("cpu.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    todo = [Requirement(text) for text in project["dependencies"] + project["optional-dependencies"]["router"]]
    found: dict[str, str] = {}
    while todo:
        requirement = todo.pop()
        name = normal(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate(IMAGE)):
            continue
        found[name] = known[name]
        todo += [Requirement(text) for text in requires(name) or []]
    return "\n".join(sorted(found.values())) + "\n"
