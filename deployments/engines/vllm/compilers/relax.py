"""Constraints at best effort: what a compiler can't enforce is taken out of a JSON Schema, and named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from deployments.engines.vllm.compilers import llguidance, xgrammar
from deployments.engines.vllm.compilers.check import Compiler
from deployments.engines.vllm.compilers.edits import Gap, without
from deployments.engines.vllm.compilers.pointer import target
from penstock.models import ConstraintKind, StructuredOutput, Unenforced

_RECENT = 256
_MOST_PASSES = 256
MOST_UNENFORCED = 256
"""Most keywords that are left out of one schema."""
_UNSUPPORTED = (
    "multipleOf",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "format",
    "minLength",
    "maxLength",
    "propertyNames",
    "patternProperties",
)
"""Keywords that vLLM refuses for xgrammar, alone or beside others."""
_SHOWN = "vLLM does not let xgrammar enforce it here"


@lru_cache(maxsize=_RECENT)
def relax(compiler: Compiler, constraint: StructuredOutput) -> tuple[StructuredOutput, tuple[Unenforced, ...]] | None:
    """Take out of a JSON Schema what a compiler can't enforce. None where nothing can be, or too much would have to be.

    What is left may still be refused, such as a schema with a mistake: only the compiler's own check says so.
    """
    if constraint.kind is not ConstraintKind.JSON_SCHEMA:
        return None
    try:
        schema = json.loads(constraint.text)
    except (ValueError, RecursionError):
        return None
    found = relax_schema(compiler, schema) if isinstance(schema, dict) else None
    if found is None or not found[1]:
        return None
    left = StructuredOutput(ConstraintKind.JSON_SCHEMA, json.dumps(found[0], ensure_ascii=False))
    return left, found[1]


def relax_schema(compiler: Compiler, schema: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Unenforced, ...]] | None:
    """Return what is left of a schema, and what was taken out. None where that would be too much."""
    work = _Relaxation(copy.deepcopy(dict(schema)))
    find = _FINDERS[compiler]
    for _ in range(_MOST_PASSES):
        before = len(work.found)
        for gap in find(work.left):
            work.apply(gap)
        if len(work.found) > MOST_UNENFORCED:
            return None
        if len(work.found) == before:
            break
    return work.left, tuple(work.found.values())


class _Relaxation:
    def __init__(self, left: dict[str, Any]) -> None:
        self.left = left
        self.found: dict[str, Unenforced] = {}
        """Keywords by their place in the schema as it came."""
        self._moved: list[tuple[str, str]] = []
        """Places that have moved: where they are, and where they were before that."""

    def apply(self, gap: Gap) -> None:
        part = target(self.left, gap.where)
        # An earlier change may have taken the place away.
        if not isinstance(part, dict):
            return
        reason = f"{gap.words}; {gap.edit.note}" if gap.edit.note else gap.words
        change = gap.edit.apply(part)
        for inside in change.lost:
            place = self._original(f"{gap.where}/{inside}")
            self.found.setdefault(place, Unenforced(place, inside.partition("/")[0], reason))
        self._moved += [(f"{gap.where}/{now}", f"{gap.where}/{then}") for now, then in change.moved.items()]

    def _original(self, place: str) -> str:
        for now, then in reversed(self._moved):
            if place == now or place.startswith(f"{now}/"):
                place = then + place[len(now) :]
        return place


def _gaps_of_llguidance(schema: Mapping[str, Any]) -> Sequence[Gap]:
    words = llguidance.words_of(schema)
    return llguidance.gaps(schema, words) if words else ()


def _gaps_of_xgrammar(schema: Mapping[str, Any]) -> Sequence[Gap]:
    found = list(xgrammar.gaps(schema))
    return found or list(_gaps_of_vllm(schema))


def _gaps_of_vllm(schema: Mapping[str, Any]) -> Iterator[Gap]:
    """Yield what vLLM's check before xgrammar refuses, which names no keyword."""
    from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features

    refused = has_xgrammar_unsupported_json_features
    if not refused(dict(schema)):
        return
    where, part = "#", dict(schema)
    while True:
        inside = [(place, child) for place, child in xgrammar.inside(where, part) if refused(child)]
        if not inside:
            break
        where, part = inside[0]
    present = [keyword for keyword in _UNSUPPORTED if keyword in part]
    alone = [key for key in present if not refused({name: value for name, value in part.items() if name != key})]
    if present:
        yield Gap(_SHOWN, where, without(*(alone[:1] or present)))


_FINDERS: dict[Compiler, Callable[[Mapping[str, Any]], Sequence[Gap]]] = {
    "llguidance": _gaps_of_llguidance,
    "xgrammar": _gaps_of_xgrammar,
}
