"""JSON of values: what `--json` of a command prints, and what the console's page reads."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import sys
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Return a value as JSON has it. Enumerations are words, times are ISO 8601, bytes are hexadecimal, and a number
    that JSON lacks is null.
    """
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
        return {str(plain(key)): plain(each) for key, each in value.items()}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [plain(each) for each in value]


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as JSON; without an indent on one line."""
    sys.stdout.write(json.dumps(plain(value), indent=indent) + "\n")
