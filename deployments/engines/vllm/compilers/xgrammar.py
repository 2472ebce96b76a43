"""Parts of JSON Schemas that xgrammar ignores without an error, so that output breaks the schema.

Written for xgrammar 0.2.8. vLLM's own check before that compiler finds some of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from deployments.engines.vllm.compilers.edits import (
    Edit,
    Gap,
    any_of_branches,
    first_of_all,
    known_names_required,
    without,
    without_pattern_properties,
    without_patterns,
)
from deployments.engines.vllm.compilers.overlap import Overlaps, kind_of, kinds_of_type
from deployments.engines.vllm.compilers.pointer import step, target

Problem = tuple[str, Edit]
"""What xgrammar ignores, in words, and the change that takes it out."""

_LEADING = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""Keywords of which the compiler follows the first that a schema has; it ignores what else the schema demands."""
_BRANCHES = ("anyOf", "oneOf", "allOf")
_CONTENTS = ("properties", "items", "prefixItems", "patternProperties")
_OF_ARRAYS = ("items", "prefixItems", "unevaluatedItems")
_OF_OBJECTS = ("properties", "additionalProperties", "unevaluatedProperties")
"""Keywords that, like those above, imply a type where `type` is missing."""
_DEMANDS = (
    *_LEADING,
    *_OF_ARRAYS,
    *_OF_OBJECTS,
    "required",
    "minProperties",
    "maxProperties",
    "patternProperties",
    "propertyNames",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
)
_LEAST = ("minProperties", "minItems", "minContains", "minLength")
_LENGTHS = ("minLength", "maxLength")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_NO_ARRAY_FOLLOWS = ("uniqueItems", "contains", "minContains", "maxContains")
_ONE = ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_SHOWN = 80
_DEPENDENCIES = ("dependentRequired", "dependentSchemas", "dependencies")
_MOST_COUNTED = 100
"""Most properties of an object that counts them. xgrammar takes a second for 100, and the third power of their number
more."""
_LOOKS = re.compile(r"\\.?|\[(?:\\.?|[^\]\\])*\]?|(?P<around>\(\?<?[=!])", re.DOTALL)
"""An escape, a class (complete or not), or the beginning of a group that looks ahead or behind."""


def gap(schema: Mapping[str, object]) -> str | None:
    """Return which part of a schema xgrammar would ignore, and where; None where it follows all of it. No reference of
    the schema may lead nowhere.
    """
    found = next(gaps(schema), None)
    if found is None:
        return None
    where = found.where if len(found.where) <= _SHOWN else f"{found.where[:_SHOWN]}..."
    return f"{found.words} (at {where})"


def gaps(schema: Mapping[str, object]) -> Iterator[Gap]:
    """Yield the first part of each schema in a document that xgrammar would ignore."""
    resolve = partial(target, schema)
    overlaps = Overlaps(resolve)
    for where, part in _schemas(schema, resolve):
        if (problem := next(_problems(part, overlaps), None)) is not None:
            yield Gap(problem[0], where, problem[1])


def inside(where: str, part: Mapping[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the schemas in a schema, with their places."""
    for steps, child in _children(part):
        if isinstance(child, dict):
            yield _at(where, *steps), child


def _schemas(schema: Mapping[str, object], resolve: Callable[[str], object]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield each schema with its place, and the targets of references wherever they are."""
    todo: list[tuple[str, object]] = [("#", schema)]
    seen: dict[int, object] = {}
    while todo:
        where, part = todo.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen[id(part)] = part
        yield where, part
        children = [(_at(where, *steps), child) for steps, child in _children(part)]
        if isinstance(ref := part.get("$ref"), str):
            children.append((ref, resolve(ref)))
        todo += reversed(children)


def _children(part: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the schemas in a schema, with the steps that lead there."""
    for keyword in _ONE:
        yield (keyword,), part.get(keyword)
    for keyword in _LISTS:
        if isinstance(several := part.get(keyword), list):
            yield from (((keyword, str(index)), child) for index, child in enumerate(several))
    for keyword in _NAMED:
        if isinstance(named := part.get(keyword), dict):
            yield from (((keyword, name), child) for name, child in named.items())
    if isinstance(names := part.get("propertyNames"), dict):
        # Names are strings, although schemas leave that out.
        yield ("propertyNames",), {"type": "string"} | names


def _at(where: str, *steps: str) -> str:
    return "/".join((where, *map(step, steps)))


def _problems(part: Mapping[str, object], overlaps: Overlaps) -> Iterator[Problem]:
    if (ignored := _ignored_keyword(part)) is not None:
        taken = ("if", "then", "else") if ignored == "if" else (ignored,)
        yield f"must be without {ignored!r}, which xgrammar ignores", without(*taken)
    named = part.get("patternProperties")
    for pattern in named if isinstance(named, dict) else ():
        if isinstance(pattern, str) and looks_around(pattern):
            yield _looking(pattern), without_patterns(pattern)
    if isinstance(pattern := part.get("pattern"), str) and looks_around(pattern):
        yield _looking(pattern), without("pattern")
    properties = part.get("properties")
    counts = part.get("minProperties") or part.get("maxProperties") is not None
    if counts and isinstance(properties, dict) and len(properties) > _MOST_COUNTED:
        yield (
            f"must have objects with minProperties or maxProperties of at most {_MOST_COUNTED} properties, "
            f"got {len(properties)}",
            without("minProperties", "maxProperties"),
        )
    yield from _ignored_beside(part, overlaps)


def _looking(pattern: str) -> str:
    return f"must have patterns that do not look ahead or behind, got {pattern[:_SHOWN]!r}"


def _ignored_keyword(part: Mapping[str, object]) -> str | None:
    excluded = part.get("not")
    if excluded is True or isinstance(excluded, dict):
        return "not"
    # An "if" alone demands nothing.
    if isinstance(part.get("if"), dict | bool) and ("then" in part or "else" in part):
        return "if"
    return next((keyword for keyword in _DEPENDENCIES if isinstance(part.get(keyword), dict) and part[keyword]), None)


def looks_around(pattern: str) -> bool:
    """Return whether a regular expression looks ahead or behind."""
    return any(found["around"] for found in _LOOKS.finditer(pattern))


def _ignored_beside(part: Mapping[str, object], overlaps: Overlaps) -> Iterator[Problem]:
    demands = [keyword for keyword in _DEMANDS if keyword in part and not _idle(keyword, part[keyword])]
    leading = next((keyword for keyword in _LEADING if keyword in part), None)
    if leading is not None:
        yield from _beside(part, leading, demands, overlaps)
        if leading == "oneOf" and isinstance(branches := part["oneOf"], list):
            if (pair := overlaps.pair(branches)) is not None:
                yield (
                    f"must have 'oneOf' whose branches exclude each other by type, value or a required property, "
                    f"got {pair[0]} and {pair[1]}, which may not; 'anyOf' lets both match",
                    any_of_branches(),
                )
        elif leading == "allOf" and isinstance(parts := part["allOf"], list) and len(parts) != 1:
            words = f"must have 'allOf' of one schema, which is all that xgrammar follows, got {len(parts)}"
            yield words, first_of_all() if parts else without("allOf")
        return
    if "type" not in part and not any(keyword in part for keyword in (*_OF_ARRAYS, *_OF_OBJECTS)):
        if demands:
            yield f"must have 'type' beside {demands[0]!r}, which xgrammar ignores without", without(*demands)
        return
    kinds = kinds_of_type(part.get("type"))
    if "string" in kinds:
        yield from _of_strings(demands)
    if "integer" in kinds:
        yield from _of_numbers(part, demands, whole="fraction" not in kinds)
    if "array" in kinds:
        yield from (_ignored(key) for key in _NO_ARRAY_FOLLOWS if key in demands)
    if "object" in kinds:
        yield from _of_objects(part, demands)


def _ignored(keyword: str) -> Problem:
    return f"must be without {keyword!r}, which xgrammar ignores", without(keyword)


def _beside(part: Mapping[str, object], leading: str, demands: list[str], overlaps: Overlaps) -> Iterator[Problem]:
    for keyword in demands:
        # The format of listed values is only a remark.
        if keyword != leading and not (keyword == "format" and leading in ("const", "enum")):
            # Of an object with alternatives, the properties say more.
            lost = leading if leading in _BRANCHES and any(key in part for key in _CONTENTS) else keyword
            yield f"must be without {keyword!r} beside {leading!r}, where xgrammar ignores it", without(lost)
    if "type" not in part:
        return
    allowed = kinds_of_type(part["type"])
    if leading in ("const", "enum"):
        values = part["enum"] if leading == "enum" else [part["const"]]
        fits = not isinstance(values, list) or all(kind_of(value) in allowed for value in values)
    else:
        fits = overlaps.kinds_behind(part, leading) <= allowed
    if not fits:
        yield (
            f"must have a 'type' that allows everything that {leading!r} does: xgrammar ignores it there",
            without("type"),
        )


def _of_strings(demands: list[str]) -> Iterator[Problem]:
    if "format" in demands and "pattern" in demands:
        yield "must be without 'pattern' beside 'format', where xgrammar ignores it", without("pattern")
    leading = next((keyword for keyword in ("format", "pattern") if keyword in demands), None)
    for keyword in _LENGTHS:
        if leading and keyword in demands:
            yield f"must be without {keyword!r} beside {leading!r}, where xgrammar ignores it", without(keyword)


def _of_numbers(part: Mapping[str, object], demands: list[str], *, whole: bool) -> Iterator[Problem]:
    if "multipleOf" not in demands:
        return
    if not whole or not isinstance(part["multipleOf"], int):
        yield (
            f"must have 'multipleOf' with integers only, and a whole one, got {part['multipleOf']!r:.40}",
            without("multipleOf"),
        )
    for keyword in _BOUNDS:
        if keyword in demands:
            yield f"must be without 'multipleOf' beside {keyword!r}, where xgrammar ignores it", without("multipleOf")


def _of_objects(part: Mapping[str, object], demands: list[str]) -> Iterator[Problem]:
    properties, required = part.get("properties"), part.get("required")
    known = properties if isinstance(properties, dict) else {}
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str) and name not in known:
            yield (
                f"must have what is 'required' in 'properties', which is all that xgrammar follows, got {name!r:.40}",
                known_names_required(),
            )
    if "propertyNames" in demands:
        for keyword in ("properties", "patternProperties", "unevaluatedProperties"):
            if keyword in demands:
                yield (
                    f"must be without 'propertyNames' beside {keyword!r}, where xgrammar ignores it",
                    without("propertyNames"),
                )
    patterns = part.get("patternProperties")
    if isinstance(patterns, dict) and len(patterns) > 1:
        yield (
            f"must have 'patternProperties' with one pattern: xgrammar follows one for each name, got {len(patterns)}",
            without_patterns(*list(patterns)[1:]),
        )
    if patterns and known and part.get("additionalProperties", False) is not False:
        yield (
            "must be without 'patternProperties' beside 'additionalProperties' and 'properties': xgrammar ignores it",
            without_pattern_properties(),
        )


def _idle(keyword: str, value: object) -> bool:
    """Return whether a keyword demands nothing: a schema that allows everything, no names, a least number of 0."""
    if keyword in _LEADING:
        return False
    if keyword == "uniqueItems" or isinstance(value, dict | list):
        return not value
    return value is True or (value == 0 and value is not False and keyword in _LEAST)
