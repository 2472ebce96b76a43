"""What compilers follow, what they refuse, and what xgrammar would follow in part, which we refuse for it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from deployments.demo_model import MODEL_DIR
from deployments.engines.vllm.compilers.check import silent_gap, told
from penstock.models import ConstraintKind, StructuredOutput

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

END = 256
AB = {"a": {"type": "integer"}, "b": {"type": "integer"}}
BASE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
MORE = {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}


def xgrammar_accepts(schema: dict[str, Any], value: Any) -> bool:
    # Takes seconds with what it imports, so not when tests are collected.
    import xgrammar

    tokens = [*(bytes([byte]) for byte in range(END)), b"</s>"]
    info = xgrammar.TokenizerInfo(tokens, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[END])
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_json_schema(json.dumps(schema))
    matcher = xgrammar.GrammarMatcher(compiled)
    return matcher.accept_string(json.dumps(value)) and matcher.accept_token(END)


@cache
def tokens() -> Any:
    import llguidance.hf
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(MODEL_DIR))
    return llguidance.hf.from_tokenizer(tokenizer, len(tokenizer))


def llguidance_problem(kind: str, text: str) -> str | None:
    """Return why vLLM's check with llguidance refuses a constraint."""
    import vllm
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.structured_output.backend_guidance import validate_guidance_grammar

    try:
        validate_guidance_grammar(
            vllm.SamplingParams(structured_outputs=StructuredOutputsParams(**{kind: text})), tokenizer=tokens()
        )
    except Exception as error:  # noqa: BLE001 - vLLM raises an error of its own
        return told(error)
    return None


def llguidance_accepts(schema: dict[str, Any], value: Any) -> bool:
    import llguidance

    compiled = llguidance.LLMatcher.grammar_from_json_schema(
        json.dumps(schema), defaults={"whitespace_flexible": False}
    )
    matcher = llguidance.LLMatcher(tokens(), compiled, log_level=0)
    assert not matcher.is_error()
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return bool(matcher.consume_tokens(tokens().tokenize_str(compact)) and matcher.is_accepting())


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "object", "properties": AB, "required": ["a"]}, {"a": 1}, {}),
        ({"type": "object", "properties": AB, "required": ["c"]}, {"c": 1}, {"a": 1}),
        ({"$ref": "#/$defs/s", "required": ["a"], "$defs": {"s": {"type": "object", "properties": AB}}}, {"a": 1}, {}),
        ({"oneOf": [{"const": "a"}, {"type": "integer"}]}, "a", "b"),
        ({"type": "string", "enum": ["a", 1]}, "a", 1),
        ({"type": ["string", "null"], "enum": ["a", None]}, None, "b"),
        ({"allOf": [{"type": "integer"}, {"minimum": 5}]}, 5, 3),
        ({"allOf": [BASE, MORE]}, {"a": 1, "b": "x"}, {"a": 1}),
        ({"type": "object", "properties": AB, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"b": 1}, {}),
        ({"minimum": 5}, 5, 3),
        ({"type": "string", "format": "email", "pattern": "^b.*$"}, "b@b.cc", "a@b.cc"),
        ({"type": "string", "format": "email", "maxLength": 8}, "b@b.cc", "b@bbbbbb.cc"),
        ({"type": "string", "format": "uri", "minLength": 1, "maxLength": 20}, "https://a.b", "https://a.b/0123456789"),
        ({"type": "string", "pattern": "^a+$", "maxLength": 2}, "aa", "aaa"),
        ({"type": "string", "pattern": r"^\p{L}{2}$"}, "äb", "1b"),
        ({"type": "number", "multipleOf": 0.5}, 1.5, 0.3),
        ({"type": "integer", "multipleOf": 5, "minimum": 10}, 15, 5),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, 1, 0),
        ({"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, [1], [1, 2]),
        ({"type": "object", "minProperties": 1}, {"x": 1}, {}),
        ({"type": "array", "minItems": 2}, [1, 2], [1]),
        ({"type": "object", "patternProperties": {"^n_": {"type": "integer"}}}, {"n_a": 1}, {"n_a": "x"}),
    ],
)
def test_llguidance_follows_the_whole_schema(schema: dict[str, Any], right: Any, wrong: Any) -> None:
    assert llguidance_problem("json", json.dumps(schema)) is None
    assert llguidance_accepts(schema, right)
    assert not llguidance_accepts(schema, wrong)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "array", "uniqueItems": True, "items": {"type": "integer"}}, "uniqueItems"),
        ({"type": "array", "contains": {"type": "integer"}}, "contains"),
        ({"type": "object", "propertyNames": {"pattern": "^a$"}}, "propertyNames"),
        ({"properties": AB, "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"not": {"type": "string"}}, "not"),
        ({"if": {"type": "string"}, "then": {"const": "a"}}, "if"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, "dependentSchemas"),
        ({"dependencies": {"a": ["b"]}}, "dependencies"),
        ({"type": "string", "pattern": "^(?=a)b"}, "look-around"),
        ({"type": "string", "format": "password"}, "Unknown format: password"),
        ({"type": "objct"}, "objct"),
        ({"type": "object", "properties": AB, "maxProperties": 1}, "maxProperties"),
    ],
)
def test_llguidance_refuses_by_name_what_it_does_not_follow(schema: dict[str, Any], words: str) -> None:
    found = llguidance_problem("json", json.dumps({"type": "object", "properties": {"x": schema}}))
    assert found is not None
    assert words in found
    assert not found.startswith("Grammar error")


@pytest.mark.parametrize("pattern", ["(a", "a)", "[a", "*a", "(+a)", "a|?", "(?=a)b"])
def test_text_that_is_no_regular_expression_is_refused(pattern: str) -> None:
    assert llguidance_problem("regex", pattern) is not None


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
def test_what_xgrammar_lets_out_by_mistake_is_refused_for_it(schema: dict[str, Any], wrong: Any) -> None:
    """A schema that a newer xgrammar follows may be taken."""
    assert xgrammar_accepts(schema, wrong)
    constraint = StructuredOutput(ConstraintKind.JSON_SCHEMA, json.dumps(schema))
    assert silent_gap("xgrammar", constraint) is not None
    # The other compiler judges for itself.
    assert silent_gap("llguidance", constraint) is None


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
def test_what_is_not_refused_for_xgrammar_is_followed(schema: dict[str, Any], right: Any, wrong: Any) -> None:
    assert silent_gap("xgrammar", StructuredOutput(ConstraintKind.JSON_SCHEMA, json.dumps(schema))) is None
    assert xgrammar_accepts(schema, right)
    assert not xgrammar_accepts(schema, wrong)
