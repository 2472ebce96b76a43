"""The grammar compiler follows a schema in part only where the router says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.settings import LimitSettings
from router.validation.schema import schema_problem

pytestmark = pytest.mark.slow

END = 256
AB = {"a": {"type": "integer"}, "b": {"type": "integer"}}


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """Say whether vLLM's first compiler lets a value out."""
    # Takes seconds with what it imports, so not when tests are collected.
    import xgrammar

    tokens = [*(bytes([byte]) for byte in range(END)), b"</s>"]
    info = xgrammar.TokenizerInfo(tokens, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[END])
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_json_schema(json.dumps(schema))
    matcher = xgrammar.GrammarMatcher(compiled)
    return matcher.accept_string(json.dumps(value)) and matcher.accept_token(END)


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 3),
        ({"type": "object", "properties": AB, "required": ["a"], "anyOf": [{"type": "object"}]}, {}),
        ({"$ref": "#/$defs/s", "required": ["a"], "$defs": {"s": {"type": "object", "properties": AB}}}, {}),
        ({"type": "string", "enum": ["a", 1]}, 1),
        ({"const": 1, "enum": [2]}, 1),
        ({"allOf": [{"type": "integer"}, {"minimum": 5}]}, 3),
        ({"minimum": 5}, 3),
        ({"type": "object", "properties": AB, "required": ["c"]}, {"a": 1}),
        ({"type": "string", "format": "email", "pattern": "^b.*$"}, "a@b.cc"),
        ({"type": "string", "pattern": "^a+$", "maxLength": 2}, "aaa"),
        ({"type": "object", "propertyNames": {"pattern": "^a$"}, "unevaluatedProperties": False}, {"a": 1}),
        ({"type": "array", "uniqueItems": True, "items": {"type": "integer"}}, [1, 1]),
        ({"type": "number", "multipleOf": 0.5}, 0.3),
        ({"type": "integer", "multipleOf": 5, "minimum": 10}, 11),
    ],
)
def test_what_the_compiler_lets_out_by_mistake_is_refused_by_the_router(schema: dict[str, Any], wrong: Any) -> None:
    """A schema that the compiler has learned to follow may be taken by the router."""
    assert accepts(schema, wrong)
    assert schema_problem(json.dumps(schema), LimitSettings()) is not None


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "object", "properties": AB, "required": ["a"]}, {"a": 1}, {}),
        ({"oneOf": [{"const": "a"}, {"type": "integer"}]}, "a", "b"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, None, 3),
        ({"type": "integer", "multipleOf": 5}, 10, 3),
        ({"type": "object", "propertyNames": {"pattern": "^a$"}}, {"a": 1}, {"b": 1}),
        ({"type": "string", "maxLength": 2}, "ab", "abc"),
    ],
)
def test_what_the_router_takes_is_followed(schema: dict[str, Any], right: Any, wrong: Any) -> None:
    assert schema_problem(json.dumps(schema), LimitSettings()) is None
    assert accepts(schema, right)
    assert not accepts(schema, wrong)
