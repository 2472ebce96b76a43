"""JSON for people: indented, with each pair of numbers on one line."""

from __future__ import annotations

import json
import re
from typing import Any

_PAIR = re.compile(r"\[\s+([-+.\deE]+),\s+([-+.\deE]+)\s+\]")


def json_text(data: Any) -> str:
    return _PAIR.sub(r"[\1, \2]", json.dumps(data, indent=2)) + "\n"
