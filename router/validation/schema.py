"""Checks of a JSON Schema before an engine compiles it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from cluster.settings import LimitSettings
from router.validation.pattern import extent_problem

_SHOWN = 80
_SURROGATE = re.compile("[\ud800-\udfff]")
_DATA = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose values are data: a "$ref" in them is no reference."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values are schemas by name; such a name may equal a keyword."""


def schema_problem(text: str, limits: LimitSettings) -> str | None:
    """Return why a text is no usable JSON Schema; None when it may be one. Only the engine's compiler decides in full.

    Refused are: text that is no JSON object, nesting that is too deep, patterns that are too large, and references that
    leave the document, lead nowhere, or lead only to each other. A schema that contains itself, such as that of a tree,
    is fine.
    """
    schema, problem = _json_object(text, limits.max_schema_depth)
    if problem is not None:
        return problem
    proven: set[str] = set()
    return next((problem for part in _schemas(schema) for problem in _problems(schema, part, limits, proven)), None)


def json_object_problem(text: str, max_depth: int) -> str | None:
    """Return why a text is no JSON object of at most some depth; None when it is one."""
    return _json_object(text, max_depth)[1]


def _json_object(text: str, max_depth: int) -> tuple[dict[str, object], str | None]:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        return {}, f"must be nested at most {max_depth} deep"
    except json.JSONDecodeError as error:
        return {}, f"must be valid JSON: {error.msg} at character {error.pos}"
    except ValueError as error:
        return {}, f"must be valid JSON: {error}"
    if not isinstance(value, dict):
        return {}, f"must be a JSON object, got {type(value).__name__}"
    depth = depth_of(value)
    if depth > max_depth:
        return {}, f"must be nested at most {max_depth} deep, got {depth}"
    if "\\ud" in text.lower() and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        return {}, "must have no half of a surrogate pair, which is no character"
    return value, None


def _problems(
    schema: Mapping[str, object], part: Mapping[str, object], limits: LimitSettings, proven: set[str]
) -> Iterator[str]:
    """Yield what is wrong with one schema of a document, without the schemas inside it."""
    if isinstance(ref := part.get("$ref"), str) and (problem := _reference_problem(schema, ref, proven)):
        yield problem
    named = part.get("patternProperties")
    patterns = [part.get("pattern"), *(named if isinstance(named, dict) else ())]
    for pattern in patterns:
        if isinstance(pattern, str) and (problem := _pattern_problem(pattern, limits)):
            yield problem


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def depth_of(value: object) -> int:
    """Return how deep lists and objects are nested in a list or an object, itself counted."""
    deepest, todo = 0, [(value, 1)]
    while todo:
        part, depth = todo.pop()
        deepest = max(deepest, depth)
        children = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        todo.extend((child, depth + 1) for child in children if isinstance(child, dict | list))
    return deepest


def _schemas(schema: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """Yield every object of a document that is a schema or might be one."""
    todo: list[object] = [schema]
    while todo:
        value = todo.pop()
        if isinstance(value, list):
            todo.extend(value)
        elif isinstance(value, dict):
            yield value
            for keyword, child in value.items():
                if keyword in _NAMED and isinstance(child, dict):
                    todo.extend(child.values())
                elif keyword not in _DATA:
                    todo.append(child)


def _pattern_problem(pattern: str, limits: LimitSettings) -> str | None:
    problem = extent_problem(pattern, limits)
    return f"must have usable patterns, got {pattern[:_SHOWN]!r}, which {problem}" if problem else None


def _reference_problem(schema: Mapping[str, object], ref: str, proven: set[str]) -> str | None:
    """Return what is wrong with a reference; None where it leads to something other than references. `proven` collects
    good references, so that each is followed once.
    """
    seen: set[str] = set()
    while ref not in seen:
        if ref in proven:
            break
        seen.add(ref)
        if ref != "#" and not ref.startswith("#/"):
            return f"must have references into itself only (# or #/...), got {ref[:_SHOWN]!r}"
        found, target = _resolve(schema, ref)
        if not found:
            return f"must have what it refers to, got no {ref[:_SHOWN]!r}"
        following = target.get("$ref") if isinstance(target, dict) else None
        if not isinstance(following, str):
            break
        ref = following
    else:
        return f"must not have references that lead only to each other, got {ref[:_SHOWN]!r}"
    proven |= seen
    return None


def _resolve(schema: object, ref: str) -> tuple[bool, object]:
    value = schema
    for part in ref.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name[:9]) < len(value):
            value = value[int(name[:9])]
        else:
            return False, None
    return True, value
