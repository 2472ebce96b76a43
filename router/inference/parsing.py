"""How the output of a request is parsed."""

from __future__ import annotations

import json
from dataclasses import replace

from cluster.settings import LimitSettings
from penstock.models import Capabilities, OutputParsing, Tool, ToolMode
from router.validation import CheckedRequest, schema_problem
from router.validation.values import ChatPrompt


def parsing_of(checked: CheckedRequest, capabilities: Capabilities) -> OutputParsing | None:
    """Tell a replica what to look for in the answer of a conversation; None for output that is only text.

    A choice of one tool that must be called gets one call.
    """
    prompt, choice = checked.prompt, checked.tool_choice
    if not isinstance(prompt, ChatPrompt):
        return None
    calls = bool(prompt.tools) and choice.mode is not ToolMode.NONE and capabilities.tools
    if not calls and not capabilities.reasoning:
        return None
    tools = tuple(tool for tool in prompt.tools if not choice.names or tool.name in choice.names) if calls else ()
    named = choice.mode is ToolMode.REQUIRED and len(choice.names) == 1
    return OutputParsing(
        tools=tools,
        mode=choice.mode if calls else ToolMode.NONE,
        single_call=calls and (named or not checked.parallel_tool_calls),
        without_reasoning=not checked.include_reasoning,
        template_kwargs=json.dumps(variables) if (variables := prompt.variables()) else "",
    )


def demands_calls(parsing: OutputParsing) -> bool:
    """Return whether the engine must hold a model to calls of tools, or to the schema of one."""
    return parsing.mode is ToolMode.REQUIRED or any(tool.strict for tool in parsing.tools)


def demanding(parsing: OutputParsing, limits: LimitSettings) -> OutputParsing:
    """Return the same with every tool strict whose schema may be one that an engine follows.

    A schema that allows other arguments than an object stays one that is only shown.
    """
    return replace(parsing, tools=tuple(_demanded(tool, limits) for tool in parsing.tools))


def without_schema(parsing: OutputParsing, index: int) -> OutputParsing:
    """Return the same with one tool that is not strict."""
    tools = list(parsing.tools)
    tools[index] = replace(tools[index], strict=False)
    return replace(parsing, tools=tuple(tools))


def _demanded(tool: Tool, limits: LimitSettings) -> Tool:
    if tool.strict or not tool.parameters or json.loads(tool.parameters).get("type") != "object":
        return tool
    return tool if schema_problem(tool.parameters, limits) else replace(tool, strict=True)
