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
