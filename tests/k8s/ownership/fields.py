"""The rules of structured merge on one object, or two. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.k8s.ownership.paths import Field, Key, Member, Path, Paths, Step, below
from tests.k8s.ownership.schema import KEY_DEFAULTS, ListType, MapType, Schema


class _Absent:
    """Nothing, which is not null."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()


@dataclass
class Difference:
    """Paths in which a second object differs from a first one."""

    added: set[Path] = field(default_factory=set)
    modified: set[Path] = field(default_factory=set)
    removed: set[Path] = field(default_factory=set)


def owned(value: Any, schema: Schema, path: Path = ()) -> Paths:
    """Return the fields that who applies a value owns (typed/tofieldset.go)."""
    return frozenset(_owned(value, schema, path))


def _owned(value: Any, schema: Schema, path: Path) -> Iterator[Path]:
    kind = schema.type_of(value)
    if isinstance(kind, MapType) and not kind.atomic:
        for name, inner in (value or {}).items():
            child = (*path, Field(name))
            yield from _owned(inner, kind.of(name, schema), child)
            if inner is None or inner == {} or name not in kind.fields:
                yield child
    elif isinstance(kind, ListType) and not kind.atomic:
        for step, item in items(value, kind).items():
            yield from _owned(item, kind.element, (*path, step))
            yield (*path, step)
    else:
        yield path


def items(value: Any, kind: ListType) -> dict[Step, Any]:
    """Return the items of a list that is not atomic, by their steps. Of equal ones the first counts."""
    found: dict[Step, Any] = {}
    for item in value or []:
        found.setdefault(_step(item, kind), item)
    return found


def _step(item: Any, kind: ListType) -> Step:
    if not kind.keys:
        return Member(item)
    values = {key: item.get(key, KEY_DEFAULTS.get(key)) for key in kind.keys}
    return Key(tuple((key, value) for key, value in values.items() if value is not None))


def compare(old: Any, new: Any, schema: Schema) -> Difference:
    """Return how a second object differs (typed/compare.go)."""
    found = Difference()
    _compare(old, new, schema, (), found)
    return found


def _compare(old: Any, new: Any, schema: Schema, path: Path, found: Difference) -> None:
    kind = schema.type_of(old if new is ABSENT else new)
    leaf = isinstance(old, dict | list) and isinstance(new, dict | list) and type(old) is not type(new)
    if not leaf and isinstance(kind, MapType | ListType) and not kind.atomic and (_full(old) or _full(new)):
        for step, inner, first, second in _pairs(old, new, kind, schema):
            _compare(first, second, inner, (*path, step), found)
        if path and old is ABSENT:
            found.added.add(path)
        elif path and new is ABSENT:
            found.removed.add(path)
    elif old is ABSENT:
        found.added.add(path)
    elif new is ABSENT:
        found.removed.add(path)
    elif not _same(old, new):
        found.modified.add(path)


def _full(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _same(old: Any, new: Any) -> bool:
    # True equals 1 in Python.
    return type(old) is type(new) and bool(old == new) if isinstance(old, bool) else bool(old == new)


def _pairs(old: Any, new: Any, kind: MapType | ListType, schema: Schema) -> Iterator[tuple[Step, Schema, Any, Any]]:
    if isinstance(kind, MapType):
        first, second = _map(old), _map(new)
        for name in {**first, **second}:
            yield Field(name), kind.of(name, schema), first.get(name, ABSENT), second.get(name, ABSENT)
        return
    left, right = items(_list(old), kind), items(_list(new), kind)
    for step in {**left, **right}:
        yield step, kind.element, left.get(step, ABSENT), right.get(step, ABSENT)


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def merge(live: Any, config: Any, schema: Schema) -> Any:
    """Return a live value with what a configuration says (typed/merge.go)."""
    if live is ABSENT or config is ABSENT:
        return live if config is ABSENT else config
    kind = schema.type_of(config)
    if not isinstance(kind, MapType | ListType) or kind.atomic or not (_full(live) or _full(config)):
        return config
    if isinstance(kind, MapType):
        first, second = _map(live), _map(config)
        return {
            name: merge(first.get(name, ABSENT), second.get(name, ABSENT), kind.of(name, schema))
            for name in {**first, **second}
        }
    left, right = items(_list(live), kind), items(_list(config), kind)
    return [
        merge(left.get(step, ABSENT), right.get(step, ABSENT), kind.element) for step in _order(list(left), list(right))
    ]


def _order(left: list[Step], right: list[Step]) -> list[Step]:
    """Return the steps of both: the configuration's in its order, and those of the live list alone as early as those
    around them allow (typed/merge.go, visitListItems).
    """
    shared = [step for step in right if step in left]
    result: list[Step] = []
    first, second = 0, 0
    while first < len(left) or second < len(right):
        here = left[first] if first < len(left) else None
        there = right[second] if second < len(right) else None
        if here is not None and here not in right:
            result.append(here)
            first += 1
        elif here is not None and (here == there or there is None or (shared and shared[0] != here)):
            # One of both lists comes with its configured neighbours.
            first += 1
            if here != there:
                continue
            result.append(here)
            second += 1
            shared = shared[1:]
        elif there is not None:
            result.append(there)
            second += 1
            shared = [step for step in shared if step != there]
    return result


def remove(value: Any, schema: Schema, paths: Paths) -> Any:
    """Return a value without some paths; ABSENT if nothing is left (typed/remove.go)."""
    kind = schema.type_of(value)
    if not isinstance(kind, MapType | ListType) or not _full(value):
        return value
    if kind.atomic:
        return ABSENT if paths else value
    result: dict[Step, Any] = {}
    for step, inner, item, _ in _pairs(value, ABSENT, kind, schema):
        if (step,) in paths:
            continue
        rest = below(paths, step)
        if (left := remove(item, inner, rest) if rest else item) is not ABSENT:
            result[step] = left
    if not result:
        return ABSENT
    if isinstance(kind, MapType):
        return {name: result[Field(name)] for name in value if Field(name) in result}
    return [*result.values()]


def with_named_fields(paths: Paths, schema: Schema) -> Paths:
    """Return paths and the structures' fields on their way (fieldpath/set.go, EnsureNamedFieldsAreMembers)."""
    found = set(paths)
    for path in paths:
        inner, value = schema, {}
        for length, step in enumerate(path[:-1], 1):
            kind = inner.type_of(value)
            if isinstance(step, Field) and isinstance(kind, MapType):
                if step.name in kind.fields:
                    found.add(path[:length])
                inner = kind.of(step.name, inner)
            elif isinstance(kind, ListType):
                inner = kind.element
    return frozenset(found)
