"""Bodies of requests: JSON objects with checked fields."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from aiohttp import web

MOST_BYTES = 4 << 20
"""Most bytes of a body."""

Kind = TypeVar("Kind")


async def read_body(request: web.Request) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ValueError: it is no JSON.
        TypeError: it is no object.
    """
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError):
        raise ValueError("the body must be JSON") from None
    if not isinstance(body, dict):
        raise TypeError("the body must be a JSON object")
    return body


def field(body: dict[str, Any], name: str, kind: type[Kind], default: Kind) -> Kind:
    """Return a field, or the default where it is left out or null.

    Raises:
        TypeError: it is of another type.
    """
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name}: must be of type {kind.__name__}, got {type(value).__name__}")
    return value


def optional_number(body: dict[str, Any], name: str) -> float | None:
    """Return a number; None where it is left out or null.

    Raises:
        TypeError: it is of another type.
    """
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}: must be a number, got {type(value).__name__}")
    return float(value)
