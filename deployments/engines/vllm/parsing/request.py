"""A request as vLLM's parsers see it: a chat completion without its messages."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from deployments.engines.vllm.compilers.names import unnamed
from penstock.models import OutputParsing, StructuredOutput, Tool, ToolMode

_RECENT = 128
"""Number of different requests that are remembered. An agent sends the same tools with every request."""
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


@lru_cache(maxsize=_RECENT)
def chat_request(parsing: OutputParsing, structured: StructuredOutput | None) -> Any:
    """Return vLLM's ChatCompletionRequest. It is shared, and must not be changed."""
    return _request(parsing, structured, {tool: _schema(tool) for tool in parsing.tools})


def grammar_request(parsing: OutputParsing, structured: StructuredOutput | None) -> Any:
    """Return the same request for the making of a grammar: the engine follows only the schemas of strict tools. Its
    fields may be set anew.
    """
    return _grammar_request(parsing, structured).model_copy()


@lru_cache(maxsize=_RECENT)
def _grammar_request(parsing: OutputParsing, structured: StructuredOutput | None) -> Any:
    schemas = {tool: _schema(tool) if tool.strict else _ANY_OBJECT for tool in parsing.tools}
    return _request(parsing, structured, schemas)


def template_kwargs(parsing: OutputParsing) -> dict[str, Any]:
    """Return the variables that the chat template had."""
    return dict(json.loads(parsing.template_kwargs)) if parsing.template_kwargs else {}


def _schema(tool: Tool) -> dict[str, Any]:
    return unnamed(json.loads(tool.parameters)) if tool.parameters else _ANY_OBJECT


def _request(parsing: OutputParsing, structured: StructuredOutput | None, schemas: dict[Tool, dict[str, Any]]) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    from deployments.engines.vllm.sampling import to_vllm_constraint

    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": schemas[tool],
                "strict": tool.strict,
            },
        }
        for tool in parsing.tools
    ]
    return ChatCompletionRequest(
        model="",
        messages=[{"role": "user", "content": ""}],
        tools=tools or None,
        tool_choice=_CHOICES[parsing.mode] if tools else "none",
        parallel_tool_calls=not parsing.single_call,
        chat_template_kwargs=template_kwargs(parsing),
        structured_outputs=None if structured is None else to_vllm_constraint(structured),
    )


_CHOICES = {ToolMode.AUTO: "auto", ToolMode.REQUIRED: "required", ToolMode.NONE: "none"}
