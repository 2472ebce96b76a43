"""Demanded calls are judged without a sequence; schemas that are only shown are never a reason to refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.models import GenerationSpec
from deployments.engines.factory import resolve_model
from deployments.engines.vllm.compilers.check import special_tokens
from deployments.engines.vllm.parsing.loader import Parsers
from deployments.engines.vllm.parsing.sequence import judge_calls
from penstock.models import OutputParsing, SamplingParams, Tool, ToolMode

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

PARSERS = ("hermes", "longcat", "qwen3_coder", "kimi_k2", "minimax_m2", "glm45", "deepseek_v32")
ODD: tuple[dict[str, Any], ...] = (
    {"not": {}},
    {"type": "objct"},
    {"type": 3},
    {"properties": 3},
    {"properties": []},
    {"properties": {"a": None}},
    {"properties": {"a": {"type": ["string", 3]}}},
    {"properties": {"a": {"anyOf": [3]}}},
    {"$defs": 3, "properties": {"a": {"$ref": "#/$defs/x"}}},
    {"required": 5},
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from vllm.tokenizers import get_tokenizer

    return get_tokenizer(resolve_model("demo"))


def parsers(tokenizer: Any, name: str, compiler: Any = "llguidance") -> Parsers:
    from vllm.parser import ParserManager

    special = special_tokens(compiler, tokenizer)
    kind = ParserManager.get_parser(tool_parser_name=name, enable_auto_tools=True)
    return Parsers(kind, None, tokenizer, None, f"tool_call_parser {name!r}", compiler, False, special, False)


def spec(*tools: Tool, mode: ToolMode = ToolMode.AUTO) -> GenerationSpec:
    return GenerationSpec((), SamplingParams(1), parsing=OutputParsing(tools, mode))


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("mode", [ToolMode.AUTO, ToolMode.REQUIRED])
def test_a_tool_that_is_not_strict_is_never_refused_for_its_schema(tokenizer: Any, name: str, mode: ToolMode) -> None:
    of = parsers(tokenizer, name)
    for schema in ODD:
        found, _ = judge_calls(of, spec(Tool("f", "", json.dumps(schema)), mode=mode))
        assert not found.problem, schema


@pytest.mark.parametrize("compiler", ["llguidance", "xgrammar"])
def test_a_strict_schema_that_is_not_followed_is_named_with_its_place(tokenizer: Any, compiler: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 3}}}}
    tools = Tool("f", "", json.dumps(schema)), Tool("g", "", json.dumps(schema), strict=True)
    found, constraint = judge_calls(parsers(tokenizer, "hermes", compiler), spec(*tools))
    assert found.field == "tools[1].parameters"
    assert "not" in found.problem
    assert "(at #/properties/a)" in found.problem
    assert constraint is None


def test_calls_without_a_grammar_are_refused_as_a_whole(tokenizer: Any) -> None:
    tool = Tool("f", "", '{"type": "object", "properties": {"a": {"type": "integer"}}}', strict=True)
    found, _ = judge_calls(parsers(tokenizer, "glm45"), spec(tool))
    assert not found.field
    assert "can't be demanded" in found.problem
    none, _ = judge_calls(None, spec(tool, mode=ToolMode.REQUIRED))
    assert "no tool parser" in none.problem


def test_what_is_followed_has_a_constraint(tokenizer: Any) -> None:
    tool = Tool("f", "", '{"type": "object"}', strict=True)
    found, constraint = judge_calls(parsers(tokenizer, "hermes"), spec(tool))
    assert not found.problem
    assert constraint.grammar
