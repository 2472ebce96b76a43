"""Constraints that make a model call tools as a request demands, in the form that the engine's compiler reads."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from cluster.errors import EngineRequestError
from deployments.engines.vllm.compilers.check import Compiler, silent_gap, told
from deployments.engines.vllm.compilers.lark import UnknownFormatError, to_lark
from deployments.engines.vllm.compilers.names import unnamed_text
from deployments.engines.vllm.parsing.loader import Parsers
from penstock.models import ConstraintKind, OutputParsing, StructuredOutput, ToolMode

_RECENT = 256


def constraint_of(parsers: Parsers, parsing: OutputParsing, adjusted: Any, client: Any) -> Any:
    """Return vLLM's StructuredOutputsParams of a sequence; None without a constraint.

    Args:
        parsers: those of the engine.
        parsing: of the sequence.
        adjusted: the request after vLLM's parser has put its own constraint into it.
        client: the client's own StructuredOutputsParams; None without any.

    Raises:
        EngineRequestError: the engine can't follow what the request demands.
    """
    if (found := schema_problem(parsers.compiler, parsing)) is not None:
        index, problem = found
        name = parsing.tools[index].name
        raise EngineRequestError(f"the engine can't follow the parameters of tool {name!r}: {problem}")
    found = adjusted.structured_outputs
    demanded = "strict tools" if any(tool.strict for tool in parsing.tools) else ""
    demanded = "calls of tools" if parsing.mode is ToolMode.REQUIRED else demanded
    if demanded and (found is None or found == client):
        raise EngineRequestError(f"{demanded} can't be demanded: {parsers.name} has no grammar of its calls")
    if found is None or found.structural_tag is None or parsers.compiler != "llguidance":
        return found
    from vllm.sampling_params import StructuredOutputsParams

    try:
        grammar = to_lark(
            json.loads(found.structural_tag), parsers.special_tokens, any_whitespace=parsers.any_whitespace
        )
    except UnknownFormatError as error:
        if not demanded:
            # The client's own constraint holds, and leaves no room for calls.
            return client
        raise EngineRequestError(
            f"{demanded or 'tools'} can't be demanded of {parsers.name}: {error}. Compiler xgrammar follows it "
            "(pools.NAME.vllm.structured_output.compiler)"
        ) from error
    return StructuredOutputsParams(grammar=grammar)


def schema_problem(compiler: Compiler, parsing: OutputParsing) -> tuple[int, str] | None:
    """Return the first strict tool whose schema a compiler does not follow, and why; None where it follows all.

    Schemas of tools that are not strict are only shown to the model.
    """
    for index, tool in enumerate(parsing.tools):
        if tool.strict and tool.parameters:
            schema = StructuredOutput(ConstraintKind.JSON_SCHEMA, tool.parameters)
            if problem := _problem(compiler, schema):
                return index, problem
    return None


@lru_cache(maxsize=_RECENT)
def _problem(compiler: str, schema: StructuredOutput) -> str:
    """Return why a compiler does not follow a JSON Schema, in its own words; empty if it does."""
    if compiler != "llguidance":
        return silent_gap("xgrammar", schema) or ""
    from llguidance import LLMatcher

    try:
        problem = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(unnamed_text(schema.text)))
    except ValueError as error:
        problem = str(error)
    return told(ValueError(problem), schema) if problem else ""
