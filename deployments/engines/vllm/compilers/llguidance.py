"""Parts of JSON Schemas that llguidance refuses, found by its words. Written for llguidance 1."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from deployments.engines.vllm.compilers import names
from deployments.engines.vllm.compilers.edits import (
    Edit,
    Gap,
    any_of_branches,
    without,
    without_patterns,
)
from deployments.engines.vllm.compilers.overlap import kinds_of_type
from deployments.engines.vllm.compilers.place import parts

Finder = Callable[[Mapping[str, Any]], Edit | None]
"""Function that returns the change of a schema which has what some words mean; None where it has not."""

_KEYS = re.compile(r"Unimplemented keys: (\[.*?\])")
_FORMAT = re.compile(r"Unknown format: (.*)")
_UNABLE = re.compile(r"regex parse error:.*error: .*(?:is|are) not supported|lookarounds not supported", re.DOTALL)
"""Words against patterns that are no mistake."""
_NOT_DISJOINT = re.compile(r"patternProperty regexes /(.*)/ and /(.*)/ are not disjoint", re.DOTALL)
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_ON_THE_WAY = "\n  while processing "
_LARGE = (1 << 63) - 1
_RECENT = 1_024
_WHOLE = "whole"
_MOST_TRIED = 200
"""Most places of which each is compiled alone. Where there are more, all of them are changed."""


def words_of(schema: Mapping[str, Any]) -> str:
    """Return llguidance's words against a schema; empty where it follows it."""
    from llguidance import LLMatcher

    try:
        words = str(LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(names.unnamed(schema)))))
    except ValueError as error:
        words = str(error)
    # Where it was depends on the references that led there.
    return words.partition(_ON_THE_WAY)[0]


def gaps(schema: Mapping[str, Any], words: str) -> list[Gap]:
    """Return what llguidance's words against a schema mean; empty where they are no matter of a keyword that it lacks.

    A keyword that it does not know anywhere is found everywhere.
    """
    told = " ".join(words.split())
    if (finder := _everywhere(words)) is not None:
        return [Gap(told, where, edit) for where, edit in _found(schema, finder)]
    if (finder := _in_places(words)) is None:
        return []
    found = _found(schema, finder)
    if 1 < len(found) <= _MOST_TRIED:
        whole = _inside(schema)
        found = [(where, edit) for where, edit in found if words_of(_alone(whole, where)) == words] or found
    return [Gap(told, where, edit) for where, edit in found]


def _found(schema: Mapping[str, Any], finder: Finder) -> list[tuple[str, Edit]]:
    return [(where, edit) for where, part in parts("#", schema) if (edit := finder(part)) is not None]


def _everywhere(words: str) -> Finder | None:
    if (found := _KEYS.search(words)) is not None:
        keys = json.loads(found[1])
        return lambda part: without(*keys) if any(key in part for key in keys) else None
    if (found := _FORMAT.search(words)) is not None:
        name = found[1]
        return lambda part: (
            without("format") if part.get("format") == name and "string" in kinds_of_type(part.get("type")) else None
        )
    if _UNABLE.search(words) is not None:
        # The words have the pattern in a changed form.
        return _pattern_edit
    if "Failed to generate regex for integer range" in words:
        return lambda part: without(*_BOUNDS) if any(_large(part.get(bound)) for bound in _BOUNDS) else None
    return None


def _in_places(words: str) -> Finder | None:
    if "oneOf constraints are not supported" in words:
        return lambda part: any_of_branches() if isinstance(part.get("oneOf"), list) else None
    if "min/maxProperties only supported" in words:
        counts = ("minProperties", "maxProperties")
        return lambda part: without(*counts) if "properties" in part and any(key in part for key in counts) else None
    if "Value for 'multipleOf' has too many digits" in words:
        return lambda part: without("multipleOf") if "multipleOf" in part else None
    if (found := _NOT_DISJOINT.search(words)) is not None:
        both = found[1], found[2]
        return lambda part: (
            without_patterns(both[1])
            if isinstance(named := part.get("patternProperties"), dict) and all(each in named for each in both)
            else None
        )
    return None


def _pattern_edit(part: Mapping[str, Any]) -> Edit | None:
    if isinstance(pattern := part.get("pattern"), str) and _unable(pattern):
        return without("pattern")
    named = part.get("patternProperties")
    found = [pattern for pattern in named if _unable(pattern)] if isinstance(named, dict) else []
    return without_patterns(*found) if found else None


@lru_cache(maxsize=_RECENT)
def _unable(pattern: str) -> bool:
    return _UNABLE.search(words_of({"type": "string", "pattern": pattern})) is not None


def _large(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) >= _LARGE


def _inside(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document that has the schema in a place of its own, with references that still lead into it."""
    return {"$defs": {_WHOLE: _moved(schema)}}


def _alone(whole: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{_WHOLE}{where[1:]}", **whole}


def _moved(value: Any) -> Any:
    if isinstance(value, list):
        return [_moved(each) for each in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _moved(each) for key, each in value.items() if not (key == "$id" and isinstance(each, str))}
    if isinstance(ref := value.get("$ref"), str) and ref.startswith("#"):
        moved["$ref"] = f"#/$defs/{_WHOLE}{ref[1:]}"
    return moved
