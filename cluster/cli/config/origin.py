"""Where the value of each setting comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.cli.config.lines import lines_of
from cluster.cli.options import FLAGS
from cluster.settings import Settings
from cluster.settings.load import Sources
from cluster.trust.masking import masked

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """One setting as it is shown."""

    path: Path
    value: Any
    """Value as JSON has it; None where it is not set. Passwords are masked."""
    origin: str
    """`default`, file:line, the name of a variable, or a flag."""


class Origins:
    """Origins of settings, by path."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        file = sources.file
        self._lines = {} if file is None else lines_of(file.read_text(encoding="utf-8-sig"))

    def of(self, path: Path) -> str:
        """Return where a value comes from: flags win over variables, and variables over the file."""
        if _has(self._sources.flags, path):
            return FLAGS.get(".".join(path)) or FLAGS[path[-1]]
        for variable, name in self._sources.environment.variables.items():
            if path[: len(variable)] == variable:
                return name
        return self._place(path) if _has(self._sources.from_file, path) else "default"

    def place_of(self, problem: str) -> str:
        """Return file and line, or the flag, of the setting that a problem begins with; else nothing.

        What is missing, or within a list that is written in one piece, has the line of what it belongs to.
        """
        place = problem.partition(": ")[0]
        flag = next((path for path in _paths(self._sources.flags) if _is_in(place, path)), None)
        if flag is not None:
            return f"{self.of(flag)}: "
        if place.endswith(")") or any(_is_in(place, path) for path in self._sources.environment.variables):
            return ""
        longest = max((path for path in self._lines if _is_in(place, path)), key=len, default=None)
        return "" if longest is None else f"{self._place(longest)}: "

    def _place(self, path: Path) -> str:
        lines = (self._lines.get(path[:length]) for length in range(len(path), 0, -1))
        line = next((each for each in lines if each is not None), None)
        return f"{self._sources.file}:{line}" if line is not None else f"{self._sources.file}"


def shown_settings(settings: Settings, origins: Origins) -> Iterator[ShownSetting]:
    """Yield all settings. Those of a section come before the sections below it."""
    return _walk((), settings.model_dump(mode="json"), origins)


def _walk(path: Path, node: Mapping[str, Any], origins: Origins) -> Iterator[ShownSetting]:
    for name, value in node.items():
        if not isinstance(value, Mapping) or not value:
            yield ShownSetting((*path, name), masked(name, value), origins.of((*path, name)))
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _walk((*path, name), value, origins)


def _is_in(place: str, path: Path) -> bool:
    """Return whether a place, as problems name it, is a path or within it."""
    name = ".".join(path)
    return place == name or place.startswith((f"{name}.", f"{name}["))


def _paths(tree: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the paths of all values."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from ((name, *path) for path in _paths(value))
        else:
            yield (name,)


def _has(tree: Mapping[str, Any], path: Path) -> bool:
    node: Any = tree
    for part in path:
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True
