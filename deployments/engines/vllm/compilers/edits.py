"""Changes that take from a JSON Schema what a compiler can't enforce. What is left never allows less than before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.engines.vllm.compilers.pointer import step

Part = dict[str, Any]
_NAMES = ("additionalProperties", "unevaluatedProperties")
"""Keywords whose schema describes the values of names that no pattern matches."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an edit has done. Places are inside the schema."""

    lost: Sequence[str] = ()
    """Places of what is no longer enforced."""
    moved: Mapping[str, str] = field(default_factory=dict)
    """Places before the edit, by those after it."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Change of one schema of a document."""

    apply: Callable[[Part], Change]
    """Function that changes the schema in place."""
    note: str = ""
    """What is enforced in its place."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Part of a schema that a compiler does not follow."""

    words: str
    where: str
    """JSON pointer to the schema that has it."""
    edit: Edit


def without(*keywords: str) -> Edit:
    """Take keywords out."""

    def apply(part: Part) -> Change:
        found = [keyword for keyword in keywords if keyword in part]
        for keyword in found:
            del part[keyword]
        return Change(found)

    return Edit(apply)


def without_patterns(*patterns: str) -> Edit:
    """Take patterns of property names out. Names that they match may then have any value."""

    def apply(part: Part) -> Change:
        named = part.get("patternProperties")
        found = [pattern for pattern in patterns if isinstance(named, dict) and pattern in named]
        if not isinstance(named, dict) or not found:
            return Change()
        for pattern in found:
            del named[pattern]
        if not named:
            del part["patternProperties"]
        return Change([f"patternProperties/{step(pattern)}" for pattern in found] + _free_names(part))

    return Edit(apply)


def without_pattern_properties() -> Edit:
    """Take all patterns of property names out."""

    def apply(part: Part) -> Change:
        del part["patternProperties"]
        return Change(["patternProperties", *_free_names(part)])

    return Edit(apply)


def any_of_branches() -> Edit:
    """Let a value match several branches of `oneOf`."""

    def apply(part: Part) -> Change:
        branches = part.pop("oneOf")
        if "anyOf" not in part:
            part["anyOf"] = branches
            return Change(["oneOf"], {"anyOf": "oneOf"})
        others = list(part.get("allOf", ()))
        part["allOf"] = [*others, {"anyOf": part.pop("anyOf")}, {"anyOf": branches}]
        at = f"allOf/{len(others)}/anyOf", f"allOf/{len(others) + 1}/anyOf"
        return Change(["oneOf"], {at[0]: "anyOf", at[1]: "oneOf"})

    return Edit(apply, "a value may match several of its branches")


def first_of_all() -> Edit:
    """Keep the first schema of `allOf`."""

    def apply(part: Part) -> Change:
        others = part["allOf"]
        part["allOf"] = others[:1]
        return Change([f"allOf/{index}" for index in range(1, len(others))])

    return Edit(apply)


def known_names_required() -> Edit:
    """Require only names that `properties` has."""

    def apply(part: Part) -> Change:
        properties, required = part.get("properties"), part["required"]
        known = properties if isinstance(properties, dict) else {}
        part["required"] = [name for name in required if name in known]
        return Change(["required"])

    return Edit(apply, "names in 'properties' are still required")


def _free_names(part: Part) -> list[str]:
    """Let names without a schema of their own have any value, so that a missing pattern forbids nothing."""
    lost = [keyword for keyword in _NAMES if part.get(keyword, True) not in (True, {})]
    for keyword in lost:
        del part[keyword]
    # A compiler may take the absence for false.
    part["additionalProperties"] = True
    return lost
