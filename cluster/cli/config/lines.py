"""Lines of a TOML file at which settings are."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

_HEADER = re.compile(r"\s*(\[\[?[^\[].*?\])\s*(?:#.*)?$")
_KEY = re.compile(r"\s*((?:[\w.-]|\"[^\"]*\"|'[^']*'|\s)+?)\s*=")

Path = tuple[str, ...]


def lines_of(text: str) -> dict[Path, int]:
    """Return the line, from 1, of each table header and each key that begins a line.

    Keys within an inline table have the line of no entry of their own; that of the table is in the result. A table of a
    list has its number, from 0, in its path.
    """
    found: dict[Path, int] = {}
    section: Path = ()
    lists: dict[Path, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.match(line)) and (path := _path(header[1])) is not None:
            if header[1].startswith("[["):
                found.setdefault(_numbered(path[:-1], lists) + path[-1:], number)
                lists[path] = lists.get(path, -1) + 1
            section = _numbered(path, lists)
            found.setdefault(section, number)
        elif (key := _KEY.match(line)) and (path := _path(f"{key[1]} = 0")) is not None:
            found.setdefault((*section, *path), number)
    return found


def _numbered(path: Path, lists: Mapping[Path, int]) -> Path:
    """Return a path with the numbers of the tables that are the newest of their lists."""
    ends = range(1, len(path) + 1)
    return tuple(
        part for end in ends for part in (path[end - 1], *([str(lists[path[:end]])] if path[:end] in lists else []))
    )


def _path(text: str) -> Path | None:
    """Return the path that a line of TOML names; None where it is no TOML."""
    try:
        node: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    path = []
    while isinstance(node, Mapping) and node:
        name, node = next(iter(node.items()))
        path.append(name)
    return tuple(path)
