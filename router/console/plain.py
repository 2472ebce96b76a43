"""JSON of the client's values. A field that a value gains is in the page's data without a change here."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
from collections.abc import Mapping
from typing import Any

from aiohttp import web


def plain(value: Any) -> Any:
    """Return a value as JSON has it. A number that JSON lacks is null; bytes are hexadecimal."""
    if isinstance(value, enum.IntEnum):
        return value.name.lower()
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [plain(each) for each in value]


def answer(value: Any, status: int = 200) -> web.Response:
    """Return an answer with a value."""
    return web.json_response(plain(value), status=status, dumps=dumps)


def dumps(value: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
