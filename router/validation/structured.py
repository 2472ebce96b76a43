"""Cheap checks of structured output: its size and form. What a constraint means is up to the engine's compiler."""

from __future__ import annotations

from cluster.settings import LimitSettings
from penstock.v1 import types_pb2
from router.validation.pattern import escape_problem, extent_problem
from router.validation.schema import schema_problem
from router.validation.violations import Violations

MAX_CHOICE_BYTES = 1_024


def check_structured(found: Violations, field: str, wire: types_pb2.StructuredOutput, limits: LimitSettings) -> None:
    """Check a constraint for what makes compiling long."""
    if wire.best_effort and wire.WhichOneof("constraint") != "json_schema":
        found.add(f"{field}.best_effort", "must not be set without json_schema: only keywords can be left out")
    match wire.WhichOneof("constraint"):
        case None:
            found.add(field, "must hold one of json_schema, regex, choice, grammar")
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
        case "choice":
            _check_choices(found, f"{field}.choice.values", wire.choice, limits.max_choice_values)


def _check_choices(found: Violations, field: str, wire: types_pb2.ChoiceConstraint, most: int) -> None:
    if not found.count(field, len(wire.values), 1, most):
        return
    for index, value in enumerate(wire.values):
        found.size(f"{field}[{index}]", value, 1, MAX_CHOICE_BYTES)
    if len(set(wire.values)) != len(wire.values):
        found.add(field, "must not repeat a value")
