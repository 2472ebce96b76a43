"""The kinds of JSON values that a schema may describe, and whether two schemas may describe the same value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

KINDS: Mapping[str, frozenset[str]] = {
    "null": frozenset({"null"}),
    "boolean": frozenset({"boolean"}),
    "integer": frozenset({"integer"}),
    "number": frozenset({"integer", "fraction"}),
    "string": frozenset({"string"}),
    "array": frozenset({"array"}),
    "object": frozenset({"object"}),
}
"""Kinds of values by type; every integer is also a number."""
ALL = frozenset().union(*KINDS.values())
_MAX_DEPTH = 32
"""Deepest chain of references that is followed; a deeper schema counts as one that allows everything."""
_MAX_COMPARISONS = 20_000
"""Most comparisons, some 40 ms. After them two schemas count as overlapping."""


def kind_of(value: object) -> str:
    """Return the kind of a value, one of ALL."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "fraction"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def kinds_of_type(named: object) -> frozenset[str]:
    """Return the kinds that a `type` allows; all of them where it is missing or unknown."""
    names = named if isinstance(named, list) else [named]
    known = [KINDS[name] for name in names if isinstance(name, str) and name in KINDS]
    return frozenset().union(*known) if known else ALL


@dataclass(slots=True)
class Overlaps:
    """Comparison of the schemas of one document. `resolve` follows a reference; None where it leads nowhere."""

    resolve: Callable[[str], object]
    _known: dict[int, frozenset[str]] = field(default_factory=dict)
    """Kinds by the identity of a schema of the document, so that each is computed once."""
    _listed: dict[int, frozenset[str]] = field(default_factory=dict)
    """Listed values, by the same identity."""
    _comparisons: int = 0

    def pair(self, branches: list[object]) -> tuple[int, int] | None:
        """Return the positions of two branches that may describe the same value; None where no two can."""
        listed = [self._plain_values(branch) for branch in branches if isinstance(branch, dict)]
        if len(listed) == len(branches):
            values = [each for each in listed if each is not None]
            # The usual long list has one value per branch.
            if len(values) == len(branches) and sum(map(len, values)) == len(frozenset().union(*values)):
                return None
        for first, second in combinations(range(len(branches)), 2):
            if not self._disjoint(branches[first], branches[second], 0):
                return first, second
        return None

    def kinds(self, schema: object, depth: int = 0) -> frozenset[str]:
        """Return the kinds of values that a schema of the document may describe: too many rather than too few."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return frozenset() if schema is False else ALL
        if (known := self._known.get(id(schema))) is not None:
            return known
        # Until its own kinds are known, a schema that contains itself may be anything.
        self._known[id(schema)] = ALL
        found = kinds_of_type(schema.get("type"))
        if (values := _values(schema)) is not None:
            found &= {kind_of(value) for value in values}
        for keyword in ("$ref", "anyOf", "oneOf", "allOf"):
            found &= self.kinds_behind(schema, keyword, depth)
        self._known[id(schema)] = found
        return found

    def kinds_behind(self, schema: Mapping[str, object], keyword: str, depth: int = 0) -> frozenset[str]:
        """Return the kinds that a keyword allows which leads to other schemas."""
        value = schema.get(keyword)
        if keyword == "$ref" and isinstance(value, str):
            return self.kinds(self.resolve(value), depth + 1)
        if keyword in ("anyOf", "oneOf", "allOf") and isinstance(value, list):
            kinds = [self.kinds(part, depth + 1) for part in value]
            return ALL.intersection(*kinds) if keyword == "allOf" else frozenset().union(*kinds)
        return ALL

    def _disjoint(self, first: object, second: object, depth: int) -> bool:
        self._comparisons += 1
        if depth > _MAX_DEPTH or self._comparisons > _MAX_COMPARISONS:
            return False
        common = self.kinds(first) & self.kinds(second)
        if not common:
            return True
        for one, other in ((first, second), (second, first)):
            if any(all(self._disjoint(part, other, depth + 1) for part in parts) for parts in self._splits(one)):
                return True
        if not isinstance(first, dict) or not isinstance(second, dict):
            return False
        values, others = self._plain_values(first), self._plain_values(second)
        if values is not None and others is not None:
            self._comparisons += len(values) + len(others) >> 4
            return not values & others
        return common == {"object"} and self._told_apart(first, second, depth)

    def _splits(self, schema: object) -> Iterator[list[object]]:
        """Yield lists of schemas. Each value that this schema allows is allowed by some schema of each list."""
        if isinstance(schema, dict):
            if isinstance(ref := schema.get("$ref"), str):
                yield [self.resolve(ref)]
            for keyword in ("anyOf", "oneOf"):
                if isinstance(parts := schema.get(keyword), list):
                    yield parts
            if isinstance(parts := schema.get("allOf"), list):
                yield from ([part] for part in parts)

    def _told_apart(self, first: Mapping[str, object], second: Mapping[str, object], depth: int) -> bool:
        """Return whether a property that one schema requires is impossible in the other, or has another value there."""
        for one, other in ((first, second), (second, first)):
            here, there = _mapping(one.get("properties")), _mapping(other.get("properties"))
            required = one.get("required")
            for name in required if isinstance(required, list) else ():
                self._comparisons += 1
                if not isinstance(name, str):
                    continue
                if name in there:
                    if self._disjoint(here.get(name, True), there[name], depth + 1):
                        return True
                elif other.get("additionalProperties") is False and not other.get("patternProperties"):
                    return True
        return False

    def _plain_values(self, schema: Mapping[str, object]) -> frozenset[str] | None:
        if id(schema) not in self._listed:
            if (values := _values(schema)) is None:
                return None
            self._listed[id(schema)] = frozenset(_plain(value) for value in values)
        return self._listed[id(schema)]


def _values(schema: Mapping[str, object]) -> list[object] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _plain(value: object) -> str:
    """Return a text that equal values share: 1.0 and 1 are equal, true and 1 are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
