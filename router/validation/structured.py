"""Cheap checks of structured output: its size and form. What a constraint means is up to the engine's compiler."""

from __future__ import annotations

from cluster.settings import LimitSettings
from penstock.v1 import types_pb2
from router.validation.pattern import escape_problem, extent_problem
from router.validation.schema import schema_problem
from router.validation.violations import Violations, shown, utf8_length

MAX_CHOICE_BYTES = 1_024
MAX_STRUCTURES = MAX_TRIGGERS = 64
MAX_TAG_BYTES = 1_024


def check_structured(found: Violations, field: str, wire: types_pb2.StructuredOutput, limits: LimitSettings) -> None:
    """Check a constraint for what makes compiling long."""
    if wire.best_effort and wire.WhichOneof("constraint") not in ("json_schema", "structural_tag"):
        found.add(f"{field}.best_effort", "must not be set without a schema: only keywords can be left out")
    match wire.WhichOneof("constraint"):
        case None:
            found.add(field, "must hold one of json_schema, regex, choice, grammar, structural_tag")
        case "json_schema":
            where = f"{field}.json_schema"
            if found.size(where, wire.json_schema, 1, limits.max_schema_bytes):
                found.add_any(where, schema_problem(wire.json_schema, limits))
        case "regex":
            where = f"{field}.regex"
            if found.size(where, wire.regex, 1, limits.max_regex_bytes):
                found.add_any(where, escape_problem(wire.regex), extent_problem(wire.regex, limits))
        case "grammar":
            where = f"{field}.grammar"
            if found.size(where, wire.grammar, 1, limits.max_grammar_bytes):
                found.add_any(where, extent_problem(wire.grammar, limits, quoted=True))
        case "structural_tag":
            _check_tag(found, f"{field}.structural_tag", wire.structural_tag, limits)
        case "choice":
            _check_choices(found, f"{field}.choice.values", wire.choice, limits.max_choice_values)


def _check_choices(found: Violations, field: str, wire: types_pb2.ChoiceConstraint, most: int) -> None:
    if not found.count(field, len(wire.values), 1, most):
        return
    for index, value in enumerate(wire.values):
        found.size(f"{field}[{index}]", value, 1, MAX_CHOICE_BYTES)
    if len(set(wire.values)) != len(wire.values):
        found.add(field, "must not repeat a value")


def _check_tag(found: Violations, field: str, wire: types_pb2.StructuralTag, limits: LimitSettings) -> None:
    if not found.count(f"{field}.structures", len(wire.structures), 1, MAX_STRUCTURES):
        return
    total = sum(utf8_length(each.json_schema) for each in wire.structures)
    if not found.count(f"{field}.structures", total, 0, limits.max_schema_bytes, "bytes of schemas"):
        return
    for index, each in enumerate(wire.structures):
        _check_tagged(found, f"{field}.structures[{index}]", each, wire, limits)
    begins = [each.begin for each in wire.structures]
    for begin in {begin for begin in begins if begins.count(begin) > 1}:
        found.add(f"{field}.structures", f"must have no begin twice, got {shown(begin)} again")
    if found.count(f"{field}.triggers", len(wire.triggers), 1, MAX_TRIGGERS):
        _check_triggers(found, f"{field}.triggers", wire)


def _check_tagged(
    found: Violations,
    field: str,
    part: types_pb2.TaggedSchema,
    wire: types_pb2.StructuralTag,
    limits: LimitSettings,
) -> None:
    found.size(f"{field}.end", part.end, 1, MAX_TAG_BYTES)
    if found.size(f"{field}.begin", part.begin, 1, MAX_TAG_BYTES) and not part.begin.startswith(tuple(wire.triggers)):
        found.add(f"{field}.begin", f"must begin with one of the triggers, got {shown(part.begin)}")
    if found.size(f"{field}.json_schema", part.json_schema, 1, limits.max_schema_bytes):
        found.add_any(f"{field}.json_schema", schema_problem(part.json_schema, limits))


def _check_triggers(found: Violations, field: str, wire: types_pb2.StructuralTag) -> None:
    for index, trigger in enumerate(wire.triggers):
        where = f"{field}[{index}]"
        if not found.size(where, trigger, 1, MAX_TAG_BYTES):
            continue
        if not any(each.begin.startswith(trigger) for each in wire.structures):
            found.add(where, f"must be the beginning of a structure's begin, got {shown(trigger)}")
        if any(trigger.startswith(other) or other.startswith(trigger) for other in wire.triggers[:index]):
            found.add(where, f"must not begin with another trigger, nor the other way round, got {shown(trigger)}")
