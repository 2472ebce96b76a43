"""Place in a JSON Schema of what llguidance refuses. Its own words name a keyword or value, but not where it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping

from deployments.engines.vllm.compilers.pointer import step

_DATA = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose values are data, not schemas."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values are schemas by name. Such a name may equal a keyword."""
_KEYS = re.compile(r"Unimplemented keys: (\[.*?\])")
_VALUE = re.compile(r"(?:Unknown|Invalid) (format|type): (\S+)")
_SHOWN = 80


def with_place(schema: object, words: str) -> str:
    """Return a compiler's words with the first place that they may mean, as a JSON pointer."""
    wanted = _wanted(words)
    if wanted is None:
        return words
    where = next((where for where, part in parts("#", schema) if wanted(part)), None)
    return words if where is None else f"{words} (at {where if len(where) <= _SHOWN else where[:_SHOWN] + '...'})"


def _wanted(words: str) -> Callable[[Mapping[str, object]], bool] | None:
    if (found := _KEYS.search(words)) is not None:
        keys = json.loads(found[1])
        return lambda part: all(key in part for key in keys)
    if (found := _VALUE.search(words)) is not None:
        keyword, value = found[1], found[2]
        return lambda part: part.get(keyword) == value
    if "oneOf" in words:
        return lambda part: "oneOf" in part
    return None


def parts(where: str, schema: object) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield every object of a document that is a schema or might be one, with its JSON pointer."""
    todo = [(where, schema, False)]
    while todo:
        where, value, names = todo.pop()
        if isinstance(value, list):
            todo += reversed([(f"{where}/{index}", child, False) for index, child in enumerate(value)])
        elif isinstance(value, dict):
            if not names:
                yield where, value
            inside = [
                (f"{where}/{step(key)}", child, not names and key in _NAMED)
                for key, child in value.items()
                if names or key not in _DATA
            ]
            todo += reversed(inside)
