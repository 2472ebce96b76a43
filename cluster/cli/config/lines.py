"""Lines of a TOML file at which settings are."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

_HEADER = re.compile(r"\s*(\[[^\[].*?\])\s*(?:#.*)?$")
_KEY = re.compile(r"\s*((?:[\w.-]|\"[^\"]*\"|'[^']*'|\s)+?)\s*=")

Path = tuple[str, ...]


def lines_of(text: str) -> dict[Path, int]:
    """Return the line, from 1, of each table header and each key that begins a line.

    Keys within an inline table have the line of no entry of their own; that of the table is in the result.
    """
    found: dict[Path, int] = {}
    section: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.match(line)) and (path := _path(header[1])) is not None:
            section = path
            found.setdefault(section, number)
        elif (key := _KEY.match(line)) and (path := _path(f"{key[1]} = 0")) is not None:
            found.setdefault((*section, *path), number)
    return found


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
