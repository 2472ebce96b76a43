"""JSON pointers into a schema."""

from __future__ import annotations

from urllib.parse import unquote


def target(schema: object, pointer: str) -> object:
    """Return what a pointer, such as #/$defs/a, leads to; None where it leads nowhere."""
    value = schema
    for part in pointer.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name[:9]) < len(value):
            value = value[int(name[:9])]
        else:
            return None
    return value


def step(name: str) -> str:
    """Return a name as a step of a pointer."""
    return name.replace("~", "~0").replace("/", "~1").replace("%", "%25")
