"""Parts of JSON Schemas that xgrammar ignores without an error, so that output breaks the schema.

Written for xgrammar 0.2.8. vLLM's own check before that compiler finds some of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import unquote

from deployments.engines.vllm.compilers.overlap import Overlaps, kind_of, kinds_of_type

_LEADING = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""Keywords of which the compiler follows the first that a schema has; it ignores what else the schema demands."""
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

    def resolve(ref: str) -> object:
        return _target(schema, ref)

    overlaps = Overlaps(resolve)
    for where, part in _schemas(schema, resolve):
        if (problem := next(_problems(part, overlaps), None)) is not None:
            return f"{problem} (at {where})"
    return None


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
            children.append((_at(ref), resolve(ref)))
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
    path = "/".join((where, *steps))
    return path if len(path) <= _SHOWN else f"{path[:_SHOWN]}..."


def _problems(part: Mapping[str, object], overlaps: Overlaps) -> Iterator[str]:
    if (ignored := _ignored_keyword(part)) is not None:
        yield f"must be without {ignored!r}, which xgrammar ignores"
    named = part.get("patternProperties")
    for pattern in (part.get("pattern"), *(named if isinstance(named, dict) else ())):
        if isinstance(pattern, str) and looks_around(pattern):
            yield f"must have patterns that do not look ahead or behind, got {pattern[:_SHOWN]!r}"
    properties = part.get("properties")
    counts = part.get("minProperties") or part.get("maxProperties") is not None
    if counts and isinstance(properties, dict) and len(properties) > _MOST_COUNTED:
        yield (
            f"must have objects with minProperties or maxProperties of at most {_MOST_COUNTED} properties, "
            f"got {len(properties)}"
        )
    yield from _ignored_beside(part, overlaps)


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


def _ignored_beside(part: Mapping[str, object], overlaps: Overlaps) -> Iterator[str]:
    demands = [keyword for keyword in _DEMANDS if keyword in part and not _idle(keyword, part[keyword])]
    leading = next((keyword for keyword in _LEADING if keyword in part), None)
    if leading is not None:
        yield from _beside(part, leading, demands, overlaps)
        if leading == "oneOf" and isinstance(branches := part["oneOf"], list):
            if (pair := overlaps.pair(branches)) is not None:
                yield (
                    f"must have 'oneOf' whose branches exclude each other by type, value or a required property, "
                    f"got {pair[0]} and {pair[1]}, which may not; 'anyOf' lets both match"
                )
        elif leading == "allOf" and isinstance(parts := part["allOf"], list) and len(parts) != 1:
            yield f"must have 'allOf' of one schema, which is all that xgrammar follows, got {len(parts)}"
        return
    if "type" not in part and not any(keyword in part for keyword in (*_OF_ARRAYS, *_OF_OBJECTS)):
        if demands:
            yield f"must have 'type' beside {demands[0]!r}, which xgrammar ignores without"
        return
    kinds = kinds_of_type(part.get("type"))
    if "string" in kinds:
        yield from _of_strings(demands)
    if "integer" in kinds:
        yield from _of_numbers(part, demands, whole="fraction" not in kinds)
    if "array" in kinds:
        yield from (f"must be without {key!r}, which xgrammar ignores" for key in _NO_ARRAY_FOLLOWS if key in demands)
    if "object" in kinds:
        yield from _of_objects(part, demands)


def _beside(part: Mapping[str, object], leading: str, demands: list[str], overlaps: Overlaps) -> Iterator[str]:
    for keyword in demands:
        # The format of listed values is only a remark.
        if keyword != leading and not (keyword == "format" and leading in ("const", "enum")):
            yield f"must be without {keyword!r} beside {leading!r}, where xgrammar ignores it"
    if "type" not in part:
        return
    allowed = kinds_of_type(part["type"])
    if leading in ("const", "enum"):
        values = part["enum"] if leading == "enum" else [part["const"]]
        fits = not isinstance(values, list) or all(kind_of(value) in allowed for value in values)
    else:
        fits = overlaps.kinds_behind(part, leading) <= allowed
    if not fits:
        yield f"must have a 'type' that allows everything that {leading!r} does: xgrammar ignores it there"


def _of_strings(demands: list[str]) -> Iterator[str]:
    if "format" in demands and "pattern" in demands:
        yield "must be without 'pattern' beside 'format', where xgrammar ignores it"
    leading = next((keyword for keyword in ("format", "pattern") if keyword in demands), None)
    for keyword in _LENGTHS:
        if leading and keyword in demands:
            yield f"must be without {keyword!r} beside {leading!r}, where xgrammar ignores it"


def _of_numbers(part: Mapping[str, object], demands: list[str], *, whole: bool) -> Iterator[str]:
    if "multipleOf" not in demands:
        return
    if not whole or not isinstance(part["multipleOf"], int):
        yield f"must have 'multipleOf' with integers only, and a whole one, got {part['multipleOf']!r:.40}"
    for keyword in _BOUNDS:
        if keyword in demands:
            yield f"must be without 'multipleOf' beside {keyword!r}, where xgrammar ignores it"


def _of_objects(part: Mapping[str, object], demands: list[str]) -> Iterator[str]:
    properties, required = part.get("properties"), part.get("required")
    known = properties if isinstance(properties, dict) else {}
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str) and name not in known:
            yield f"must have what is 'required' in 'properties', which is all that xgrammar follows, got {name!r:.40}"
    if "propertyNames" in demands:
        for keyword in ("properties", "patternProperties", "unevaluatedProperties"):
            if keyword in demands:
                yield f"must be without 'propertyNames' beside {keyword!r}, where xgrammar ignores it"
    patterns = part.get("patternProperties")
    if isinstance(patterns, dict) and len(patterns) > 1:
        yield f"must have 'patternProperties' with one pattern: xgrammar follows one for each name, got {len(patterns)}"
    if patterns and known and part.get("additionalProperties", False) is not False:
        yield "must be without 'patternProperties' beside 'additionalProperties' and 'properties': xgrammar ignores it"


def _idle(keyword: str, value: object) -> bool:
    """Return whether a keyword demands nothing: a schema that allows everything, no names, a least number of 0."""
    if keyword in _LEADING:
        return False
    if keyword == "uniqueItems" or isinstance(value, dict | list):
        return not value
    return value is True or (value == 0 and value is not False and keyword in _LEAST)


def _target(schema: object, ref: str) -> object:
    value = schema
    for part in ref.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name[:9]) < len(value):
            value = value[int(name[:9])]
        else:
            return None
    return value
