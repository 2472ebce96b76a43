"""Constraints are measured before an engine compiles them: by what makes compiling long."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.settings import LimitSettings
from router.validation.pattern import extent_problem
from router.validation.schema import schema_problem

LIMITS = LimitSettings()
LOOP = {"$ref": "#/$defs/a"}
LARGE = "((a{1000}){1000}){1000}"


def problem(schema: Any) -> str | None:
    return schema_problem(json.dumps(schema), LIMITS)


def counted(properties: int, **bounds: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(properties)}, **bounds}


@pytest.mark.parametrize(
    "bounds", [{"minProperties": 1}, {"maxProperties": 3}, {"minProperties": 0, "maxProperties": 0}]
)
def test_objects_that_count_their_properties_have_few(bounds: dict[str, int]) -> None:
    """Compiling takes a second for 100 properties and more than forty for 300, whatever the numbers."""
    assert problem(counted(100, **bounds)) is None
    found = problem({"anyOf": [{"items": counted(101, **bounds)}]})
    assert found is not None
    assert "at most 100 properties, got 101" in found


def test_objects_that_do_not_count_have_as_many_as_they_like() -> None:
    assert problem(counted(1000)) is None
    assert problem(counted(1000, minProperties=0)) is None
    # A property of that name is no bound.
    assert problem({"properties": {"minProperties": counted(500)}}) is None


def test_what_stands_in_a_class_is_repeated_too() -> None:
    wide = "[^" + "".join(chr(0x4E00 + 2 * n) for n in range(1300)) + "]"
    assert extent_problem(f"{wide}{{100}}", LIMITS) is None
    found = extent_problem(f"{wide}{{1000}}", LIMITS)
    assert found is not None
    assert "at most 131072 items" in found
    assert problem({"pattern": f"{wide}{{1000}}"}) is not None
    assert extent_problem("[a-zA-Z0-9_-]{4000}", LIMITS) is None


@pytest.mark.parametrize("keyword", ["default", "const", "enum", "examples"])
@pytest.mark.parametrize("place", ["properties", "$defs", "definitions", "patternProperties", "dependentSchemas"])
def test_a_property_may_have_the_name_of_a_keyword(keyword: str, place: str) -> None:
    for bad in ({"pattern": LARGE}, {"$ref": "https://example.org/x"}, {"$ref": "#/nowhere"}):
        assert problem({place: {keyword: bad}}) is not None
        assert problem({"properties": {"x": {place: {keyword: bad}}}}) is not None
    # What stands behind the keyword itself is data.
    assert problem({keyword: {"$ref": "https://example.org/x", "pattern": LARGE}}) is None


def test_references_that_lead_only_to_each_other_are_found_below_any_name() -> None:
    found = problem({"properties": {"default": LOOP}, "$defs": {"a": LOOP}})
    assert found is not None
    assert "lead only to each other" in found


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "string", "not": {"const": "a"}}, "not"),
        ({"not": {}}, "not"),
        ({"not": True}, "not"),
        ({"if": {"type": "string"}, "then": {"const": "a"}}, "if"),
        ({"if": True, "else": {"const": "a"}}, "if"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, "dependentSchemas"),
        ({"dependencies": {"a": ["b"]}}, "dependencies"),
    ],
)
def test_keywords_that_engines_ignore_are_refused(schema: dict[str, Any], keyword: str) -> None:
    for around in (schema, {"properties": {"x": schema}}, {"items": {"anyOf": [{"type": "null"}, schema]}}):
        found = problem(around)
        assert found is not None
        assert f"without '{keyword}'" in found
    # A property may have its name, and data may look like it.
    assert problem({"properties": {keyword: {"type": "integer"}, "then": {"type": "integer"}}}) is None
    assert problem({"enum": [schema]}) is None


def test_keywords_that_say_nothing_are_ignored() -> None:
    for schema in ({"not": False}, {"if": {"type": "string"}}, {"then": {}}, {"dependentRequired": {}}):
        assert problem(schema) is None


@pytest.mark.parametrize("pattern", ["^(?=a)b", "^(?!a)[a-z]+$", "b(?<=b)", "(?<!a)b", "[(](?=a)b"])
def test_patterns_of_a_schema_that_look_around_are_refused(pattern: str) -> None:
    for schema in ({"pattern": pattern}, {"patternProperties": {pattern: {}}}):
        found = problem(schema)
        assert found is not None
        assert "look ahead or behind" in found


@pytest.mark.parametrize("pattern", [r"\(?=a", "[(?=]a", "(?:a)(?<name>b)", "[]", r"[\](?!]"])
def test_patterns_that_only_seem_to_look_around_are_not(pattern: str) -> None:
    assert problem({"type": "string", "pattern": pattern}) is None
