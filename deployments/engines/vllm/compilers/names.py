"""Names in a JSON Schema: those of its parts, and that of the dialect that it is written in.

References lead into their own document only, so nobody looks a part up by its name. llguidance still reads all names,
and refuses one that is no URI, such as "Output Format", or a dialect that it does not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from deployments.engines.vllm.compilers.place import parts

_RECENT = 256
_DIALECT = "$schema"
_IDS = ("$id", "id")
_WRITTEN = re.compile(r"https?(://json-schema\.org/draft(-0[3-7]|/2019-09|/2020-12)/schema#?)")


@lru_cache(maxsize=_RECENT)
def unnamed_text(text: str) -> str:
    """Return the text of a schema without the names that mean nothing; the same text where it has none."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return text
    left = unnamed(schema) if isinstance(schema, dict) else schema
    return text if left == schema else json.dumps(left, ensure_ascii=False)


def unnamed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without the names that mean nothing.

    A part that has references keeps its name, because they begin at the part that has one.
    """
    left = json.loads(json.dumps(schema))
    for where, part in parts("#", left):
        if not isinstance(part, dict):
            continue
        for key in _IDS:
            if isinstance(part.get(key), str) and (where == "#" or not _refers(part)):
                del part[key]
        if isinstance(dialect := part.get(_DIALECT), str) and (known := _dialect(dialect)) != dialect:
            part.pop(_DIALECT)
            if known:
                part[_DIALECT] = known
    return dict(left)


def _refers(schema: object) -> bool:
    return any(isinstance(part.get("$ref"), str) for _, part in parts("#", schema))


def _dialect(name: str) -> str:
    """Return a dialect's name as its authors write it; empty for one that is not known."""
    if (found := _WRITTEN.fullmatch(name)) is None:
        return ""
    return f"{'http' if found[2].startswith('-') else 'https'}{found[1]}"
