"""A schema of which xgrammar would follow a part only is refused, with the keyword and its place."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.engines.vllm.compilers.xgrammar import gap

AB = {"a": {"type": "integer"}, "b": {"type": "integer"}}


def problem(schema: Any) -> str | None:
    return gap(schema)


def tagged(tag: Any, *, required: bool = True, **more: Any) -> dict[str, Any]:
    tags = {"type": "object", "properties": {"tag": {"const": tag}}, **more}
    return tags | {"required": ["tag"]} if required else tags


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "object", "anyOf": [{"type": "object"}], "required": ["a"]}, "'required' beside 'anyOf'"),
        ({"properties": AB, "anyOf": [{"required": ["a"]}]}, "'properties' beside 'anyOf'"),
        ({"$ref": "#/$defs/s", "required": ["a"], "$defs": {"s": {}}}, "'required' beside '$ref'"),
        ({"const": 1, "enum": [1]}, "'enum' beside 'const'"),
        ({"enum": [1, 9], "maximum": 5}, "'maximum' beside 'enum'"),
        ({"anyOf": [{"type": "null"}], "oneOf": [{"type": "null"}]}, "'oneOf' beside 'anyOf'"),
        ({"allOf": [{"type": "object"}], "additionalProperties": False}, "'additionalProperties' beside 'allOf'"),
        ({"type": "string", "enum": ["a", 1]}, "'type' that allows everything that 'enum' does"),
        ({"type": "object", "anyOf": [{"type": "object"}, {"type": "null"}]}, "everything that 'anyOf' does"),
        (
            {"allOf": [{"type": "integer"}, {"minimum": 5}]},
            "'allOf' of one schema, which is all that xgrammar follows, got 2",
        ),
        ({"minimum": 5}, "'type' beside 'minimum'"),
        ({"required": ["a"]}, "'type' beside 'required'"),
        ({"type": "object", "properties": AB, "required": ["a", "c"]}, "'required' in 'properties'"),
        ({"type": ["string", "null"], "format": "email", "pattern": "^b"}, "'pattern' beside 'format'"),
        ({"type": "string", "pattern": "^a+$", "maxLength": 2}, "'maxLength' beside 'pattern'"),
        ({"type": "object", "propertyNames": {"pattern": "^a+$", "maxLength": 2}}, "'maxLength' beside 'pattern'"),
        ({"type": "object", "properties": AB, "propertyNames": {"enum": ["a"]}}, "'propertyNames' beside 'properties'"),
        ({"type": "object", "patternProperties": {"a.*": {"type": "null"}, ".*b": {"type": "string"}}}, "one pattern"),
        (
            {"type": "object", "properties": AB, "patternProperties": {"c": {}}, "additionalProperties": True},
            "'patternProperties' beside 'additionalProperties'",
        ),
        ({"type": "array", "uniqueItems": True, "items": {"type": "null"}}, "'uniqueItems'"),
        ({"type": "array", "contains": {"type": "null"}}, "'contains'"),
        ({"type": "number", "multipleOf": 0.5}, "'multipleOf' with integers only, and a whole one, got 0.5"),
        ({"type": "integer", "multipleOf": 5, "minimum": 7}, "'multipleOf' beside 'minimum'"),
    ],
)
def test_what_engines_follow_in_part_is_refused(schema: dict[str, Any], keyword: str) -> None:
    found = problem(schema)
    assert found is not None
    assert keyword in found
    assert "(at #" in found


@pytest.mark.parametrize(
    ("around", "place"),
    [
        (lambda each: {"type": "object", "properties": {"x": each}}, "#/properties/x"),
        (lambda each: {"type": "array", "items": {"anyOf": [{"type": "null"}, each]}}, "#/items/anyOf/1"),
        (lambda each: {"$ref": "#/parts/x", "parts": {"x": each}}, "#/parts/x"),
        (lambda each: {"type": "object", "properties": {"y" * 500: each}}, "#/properties/yyy"),
    ],
)
def test_the_place_is_told(around: Any, place: str) -> None:
    found = problem(around({"minimum": 5}))
    assert found is not None
    assert f"(at {place}" in found
    assert len(found) < 200


@pytest.mark.parametrize(
    "branches",
    [
        [{"type": "integer"}, {"type": "number"}],
        [{"type": "string"}, {"type": "string", "pattern": "^a$"}],
        [{"const": 1}, {"enum": [1.0, 2]}],
        [{"type": "null"}, {}],
        [{"type": "object", "properties": AB}, {"type": "object", "properties": {"c": {"type": "null"}}}],
        [tagged("a", required=False), tagged("b", required=False)],
        [tagged("a"), tagged("a")],
        [{"$ref": "#/oneOf/1"}, {"type": "null"}],
    ],
)
def test_branches_of_one_of_that_may_match_together_are_refused(branches: list[Any]) -> None:
    found = problem({"oneOf": branches})
    assert found is not None
    assert "'oneOf' whose branches exclude each other" in found
    assert "got 0 and 1" in found


@pytest.mark.parametrize(
    "branches",
    [
        [{"type": "integer"}, {"type": ["string", "null"]}],
        [{"const": "a"}, {"enum": ["b", 1]}, {"const": True}],
        [{"const": n} for n in range(1_000)],
        [tagged("a"), tagged("b", required=False), {"type": "null"}],
        [tagged(n) for n in range(80)],
        [{"$ref": "#/$defs/a"}, {"anyOf": [tagged("b"), {"type": "array"}]}],
        [tagged("a"), {"type": "object", "properties": AB, "additionalProperties": False}],
        [{"type": "object", "properties": {"x": tagged("a")}, "required": ["x"]},
         {"type": "object", "properties": {"x": tagged("b")}}],
    ],
)  # fmt: skip
def test_branches_of_one_of_that_exclude_each_other_are_not(branches: list[Any]) -> None:
    assert problem({"oneOf": branches, "discriminator": {"propertyName": "tag"}, "$defs": {"a": tagged("a")}}) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "X", "description": "x"},
        {"allOf": [{"$ref": "#/$defs/s"}], "title": "X", "$defs": {"s": {"type": "string", "minLength": 1}}},
        {"$ref": "#/$defs/s", "type": ["string", "null"], "$defs": {"s": {"type": "string"}}},
        {"type": "object", "anyOf": [tagged("a"), tagged("b")]},
        {"type": "string", "enum": ["a", "b"], "format": "date"},
        {"type": "number", "const": 3},
        {"properties": AB, "required": ["a"]},
        {"type": ["object", "null"], "properties": AB, "required": [], "minProperties": 0, "minLength": 3},
        {"type": "array", "items": {"type": "integer", "multipleOf": 5}, "uniqueItems": False, "maxItems": 3},
        {"type": "object", "propertyNames": {"pattern": "^a$"}, "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}, "required": ["kids"]},
        {"type": "object", "properties": {"required": {"type": "string"}, "minimum": {"type": "integer"}}},
        {"enum": [{"minimum": 5}], "examples": [{"minimum": 5}], "x-ui": {"minimum": 5}},
        {"$ref": "#/$defs/0", "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(999)} | {"999": {}}},
        {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 99 + [{"type": "null"}]}}, "$ref": "#/$defs/a"},
    ],
)
def test_what_engines_follow_is_not_refused(schema: dict[str, Any]) -> None:
    assert problem(schema) is None


def test_many_branches_that_may_match_are_compared_for_a_bounded_time() -> None:
    """Past it they are taken to overlap, however often a schema names the same lists."""
    lists = {name: {"enum": [f"{name}{n}" for n in range(1_500)]} for name in "ab"}
    branches = [{"anyOf": [{"$ref": f"#/$defs/{name}"}] * 600} for name in "ab"]
    assert problem({"oneOf": branches, "$defs": lists}) is not None


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
