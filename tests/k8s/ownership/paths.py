"""Paths of fields, written as an API server writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Field:
    """One field of a map."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@dataclass(frozen=True)
class Key:
    """Keys of one item of a list of maps, sorted by name."""

    pairs: tuple[tuple[str, Scalar], ...]

    def __str__(self) -> str:
        return "[" + ",".join(f"{name}={json.dumps(value)}" for name, value in self.pairs) + "]"


@dataclass(frozen=True)
class Member:
    """One value of a set."""

    value: Scalar

    def __str__(self) -> str:
        return f"[={json.dumps(self.value)}]"


Step = Field | Key | Member
Path = tuple[Step, ...]
Paths = frozenset[Path]


def text(path: Path) -> str:
    """Return a path as a conflict names it."""
    return "".join(map(str, path))


def at(*names: str) -> Path:
    """Return the path of nested fields."""
    return tuple(map(Field, names))


def below(paths: Paths, step: Step) -> Paths:
    """Return the rest of those paths that begin with a step and go on."""
    return frozenset(path[1:] for path in paths if len(path) > 1 and path[0] == step)
