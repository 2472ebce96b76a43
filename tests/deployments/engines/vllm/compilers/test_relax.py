"""Schemas at best effort: what a compiler can't enforce is left out and named, and the rest is enforced."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.engines.vllm.compilers import llguidance, xgrammar
from deployments.engines.vllm.compilers.check import Compiler
from deployments.engines.vllm.compilers.judge import judge
from deployments.engines.vllm.compilers.relax import MOST_UNENFORCED, relax, relax_schema
from penstock.models import ConstraintKind, StructuredOutput

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

AB = {"a": {"type": "integer"}, "b": {"type": "integer"}}
TAGS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}


def left_of(compiler: Compiler, schema: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    found = relax_schema(compiler, schema)
    assert found is not None
    return found[0], [each.place for each in found[1]]


def test_only_what_can_not_be_enforced_is_left_out_and_its_place_is_told() -> None:
    schema = {"type": "object", "properties": {"tags": TAGS, "age": {"type": "integer", "not": {"const": 3}}}}
    left, places = left_of("llguidance", schema)
    assert left == {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"type": "string"}}, "age": {"type": "integer"}},
    }
    assert sorted(places) == ["#/properties/age/not", "#/properties/tags/uniqueItems"]


@pytest.mark.parametrize(
    ("schema", "left", "places"),
    [
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]},
         {"anyOf": [{"type": "integer"}, {"type": "number"}]}, ["#/oneOf"]),
        ({"oneOf": [TAGS, {"type": "array"}]},
         {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "array"}]},
         ["#/oneOf", "#/oneOf/0/uniqueItems"]),
        ({"anyOf": [{"minimum": 1}, TAGS], "oneOf": [{"type": "integer"}, {"type": "number"}]},
         {"allOf": [{"anyOf": [{"minimum": 1}, {"type": "array", "items": {"type": "string"}}]},
                    {"anyOf": [{"type": "integer"}, {"type": "number"}]}]},
         ["#/anyOf/1/uniqueItems", "#/oneOf"]),
        ({"type": "string", "pattern": r"^(?=a)\w+", "minLength": 1}, {"type": "string", "minLength": 1},
         ["#/pattern"]),
        ({"type": "string", "pattern": r"(a)\1"}, {"type": "string"}, ["#/pattern"]),
        ({"type": "string", "format": "password"}, {"type": "string"}, ["#/format"]),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {}, ["#/if", "#/then"]),
        ({"type": "object", "properties": AB, "minProperties": 1}, {"type": "object", "properties": AB},
         ["#/minProperties"]),
        ({"type": "object", "patternProperties": {"^a": {"type": "null"}, "a$": {"type": "integer"}},
          "additionalProperties": False},
         {"type": "object", "patternProperties": {"^a": {"type": "null"}}, "additionalProperties": True},
         ["#/additionalProperties", "#/patternProperties/a$"]),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, {"type": "integer"},
         ["#/maximum", "#/minimum"]),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer", "not": {}}}},
         {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}}, ["#/$defs/a~1b/not"]),
    ],
)  # fmt: skip
def test_what_llguidance_can_not_enforce_is_left_out(
    schema: dict[str, Any], left: dict[str, Any], places: list[str]
) -> None:
    assert llguidance.words_of(schema)
    found, told = left_of("llguidance", schema)
    assert (found, sorted(told)) == (left, places)
    assert not llguidance.words_of(found)


def test_branches_that_exclude_each_other_stay_so_beside_others_that_do_not() -> None:
    def tagged(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"kind": {"const": name}}, "required": ["kind"]}

    good, bad = {"oneOf": [tagged("a"), tagged("b")]}, {"oneOf": [{"type": "integer"}, {"type": "number"}]}
    left, places = left_of("llguidance", {"type": "object", "properties": {"good": good, "bad": bad}})
    assert places == ["#/properties/bad/oneOf"]
    assert left["properties"]["good"] == good


@pytest.mark.parametrize(
    ("schema", "left", "places"),
    [
        ({"type": "object", "properties": AB, "required": ["a", "c"]},
         {"type": "object", "properties": AB, "required": ["a"]}, ["#/required"]),
        ({"type": "object", "properties": AB, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
         {"type": "object", "properties": AB}, ["#/anyOf"]),
        ({"allOf": [{"type": "integer"}, {"minimum": 5}]}, {"allOf": [{"type": "integer"}]}, ["#/allOf/1"]),
        ({"minimum": 5}, {}, ["#/minimum"]),
        ({"type": "string", "format": "email", "pattern": "^b.*$", "maxLength": 8},
         {"type": "string", "format": "email"}, ["#/maxLength", "#/pattern"]),
        ({"type": "integer", "multipleOf": 5, "minimum": 10}, {"type": "integer", "minimum": 10}, ["#/multipleOf"]),
        ({"type": "object", "propertyNames": {"pattern": "^(?=a)"}}, {"type": "object", "propertyNames": {}},
         ["#/propertyNames/pattern"]),
    ],
)  # fmt: skip
def test_what_xgrammar_would_ignore_is_left_out(
    schema: dict[str, Any], left: dict[str, Any], places: list[str]
) -> None:
    assert xgrammar.gap(schema)
    found, told = left_of("xgrammar", schema)
    assert (found, sorted(told)) == (left, places)


def test_what_vllm_refuses_for_xgrammar_is_left_out() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 5}, "m": {"type": "string"}}}
    assert xgrammar.gap(schema) is None
    left, places = left_of("xgrammar", schema)
    assert places == ["#/properties/n/multipleOf"]
    assert left["properties"] == {"n": {"type": "integer"}, "m": {"type": "string"}}


@pytest.mark.parametrize(
    "schema", [{"type": "objct"}, {"type": "string", "pattern": "(a"}, {"enum": []}, {"required": 3}]
)
async def test_a_mistake_in_a_schema_is_refused_all_the_same(schema: dict[str, Any]) -> None:
    async def problem(constraint: StructuredOutput) -> str:
        return llguidance.words_of(json.loads(constraint.text))

    asked = StructuredOutput(
        ConstraintKind.JSON_SCHEMA, json.dumps({"allOf": [schema], "not": {"const": 1}}), best_effort=True
    )
    found = await judge("llguidance", asked, problem)
    assert found.problem
    assert found.relaxed is None
    assert not found.unenforced


async def test_a_schema_that_is_followed_is_not_touched_and_a_strict_one_is_refused() -> None:
    async def problem(constraint: StructuredOutput) -> str:
        return llguidance.words_of(json.loads(constraint.text))

    fine = StructuredOutput(ConstraintKind.JSON_SCHEMA, '{"type": "integer"}', best_effort=True)
    assert (await judge("llguidance", fine, problem)).relaxed is None
    strict = StructuredOutput(ConstraintKind.JSON_SCHEMA, '{"not": {}}')
    assert "not" in (await judge("llguidance", strict, problem)).problem
    lenient = await judge("llguidance", StructuredOutput(strict.kind, strict.text, best_effort=True), problem)
    assert lenient.relaxed == StructuredOutput(ConstraintKind.JSON_SCHEMA, "{}")
    assert [(each.place, each.keyword) for each in lenient.unenforced] == [("#/not", "not")]
    assert "Unimplemented keys" in lenient.unenforced[0].reason


def test_a_schema_of_which_too_much_would_be_left_out_is_not_relaxed() -> None:
    many = {f"p{index}": TAGS for index in range(MOST_UNENFORCED + 1)}
    text = json.dumps({"type": "object", "properties": many})
    assert relax("llguidance", StructuredOutput(ConstraintKind.JSON_SCHEMA, text, best_effort=True)) is None


# --- any schema -------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 6) | st.sampled_from(["", "a", "ab", "b", "ba"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "ab", "b"]), inner, max_size=3),
    max_leaves=5,
)
PLAIN = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["integer", "string", "array", "object", "null", ["integer", "string"]]),
        "minimum": st.integers(-2, 3),
        "multipleOf": st.sampled_from([2, 3]),
        "minLength": st.integers(0, 2),
        "pattern": st.sampled_from(["^a", "b$", "^(?=a)", r"(a)\1"]),
        "format": st.sampled_from(["password"]),
        "uniqueItems": st.booleans(),
        "minItems": st.integers(0, 2),
        "required": st.lists(st.sampled_from(["a", "b", "c"]), unique=True, max_size=2),
        "minProperties": st.integers(0, 2),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
    },
)


def schemas(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(inner, min_size=1, max_size=2)
    return st.tuples(
        PLAIN,
        st.fixed_dictionaries(
            {},
            optional={
                "not": inner,
                "if": inner,
                "then": inner,
                "anyOf": several,
                "oneOf": several,
                "allOf": several,
                "items": inner,
                "contains": inner,
                "propertyNames": inner,
                "properties": st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
                "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$", "^(?=a)"]), inner, max_size=2),
                "additionalProperties": st.booleans() | inner,
                "dependentRequired": st.just({"a": ["b"]}),
            },
        ),
    ).map(lambda both: both[0] | both[1])


@pytest.mark.parametrize("compiler", ["llguidance", "xgrammar"])
@settings(max_examples=150, deadline=None)
@given(schema=st.recursive(PLAIN, schemas, max_leaves=5), values=st.lists(VALUES, min_size=1, max_size=8))
def test_what_is_left_allows_all_that_was_allowed(
    compiler: Compiler, schema: dict[str, Any], values: list[Any]
) -> None:
    found = relax_schema(compiler, schema)
    assert found is not None
    left, unenforced = found
    assert (left == schema) == (not unenforced)
    before, after = jsonschema.Draft202012Validator(schema), jsonschema.Draft202012Validator(left)
    for value in values:
        if before.is_valid(value):
            assert after.is_valid(value)
    if compiler == "xgrammar":
        # Names that are no strings are a mistake, which is refused.
        assert (xgrammar.gap(left) or "propertyNames").count("propertyNames")
