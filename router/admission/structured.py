"""Checks structured output cheaply: no grammar is compiled in the router."""

from __future__ import annotations

import json

from penstock.v1 import types_pb2

from router.admission.violations import Violations

MAX_SCHEMA_BYTES = 65_536
MAX_GRAMMAR_BYTES = 65_536
MAX_REGEX_BYTES = 4_096
MAX_CHOICES = 1_024
MAX_CHOICE_BYTES = 1_024


def check_structured(found: Violations, field: str, wire: types_pb2.StructuredOutput) -> None:
    """Check a constraint: sizes, that a schema is a JSON object, that a regular expression is well nested."""
    match wire.WhichOneof("constraint"):
        case None:
            found.add(field, "must hold one of json_schema, regex, choice, grammar")
        case "json_schema":
            where = f"{field}.json_schema"
            if found.size(where, wire.json_schema, 1, MAX_SCHEMA_BYTES) and (
                problem := schema_problem(wire.json_schema)
            ):
                found.add(where, problem)
        case "regex":
            where = f"{field}.regex"
            if found.size(where, wire.regex, 1, MAX_REGEX_BYTES) and (problem := regex_problem(wire.regex)):
                found.add(where, problem)
        case "grammar":
            found.size(f"{field}.grammar", wire.grammar, 1, MAX_GRAMMAR_BYTES)
        case "choice":
            _check_choices(found, f"{field}.choice.values", wire.choice)


def _check_choices(found: Violations, field: str, wire: types_pb2.ChoiceConstraint) -> None:
    if not found.count(field, len(wire.values), 1, MAX_CHOICES):
        return
    for index, value in enumerate(wire.values):
        found.size(f"{field}[{index}]", value, 1, MAX_CHOICE_BYTES)
    if len(set(wire.values)) != len(wire.values):
        found.add(field, "must not repeat a value")


def schema_problem(text: str) -> str | None:
    """Say why a text is no JSON Schema document; None when it may be one, which only the engine knows in full."""
    try:
        schema = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        return "must be JSON that is not nested this deeply"
    except json.JSONDecodeError as error:
        return f"must be valid JSON: {error.msg} at character {error.pos}"
    except ValueError as error:
        return f"must be valid JSON: {error}"
    return None if isinstance(schema, dict) else f"must be a JSON object, got {type(schema).__name__}"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def regex_problem(pattern: str) -> str | None:
    """Say why a text is a regular expression in no dialect; None when it may be one.

    Python's own compiler is not asked: its dialect is not the engine's, and 4 KiB can keep it busy for seconds.
    """
    if "[]" in pattern or "[^]" in pattern:
        return None  # An empty class in one dialect, the start of a class that holds a bracket in another.
    depth = 0
    in_class = False
    escaped = False
    can_repeat = False
    for position, char in enumerate(pattern):
        if escaped:
            escaped, can_repeat = False, True
        elif char == "\\":
            escaped = True
        elif in_class:
            in_class, can_repeat = char != "]", True
        elif char == "[":
            in_class = True
        elif char in "*+?" and not can_repeat and pattern[position - 1 : position + 1] != "(?":
            return f"must be a regular expression: nothing to repeat at character {position}"
        elif char == ")" and depth == 0:
            return f"must be a regular expression: unbalanced ')' at character {position}"
        else:
            depth += (char == "(") - (char == ")")
            can_repeat = char not in "(|"
    if escaped:
        return "must be a regular expression: it ends inside an escape"
    if in_class:
        return "must be a regular expression: a character class is not closed"
    return f"must be a regular expression: {depth} groups are not closed" if depth else None
