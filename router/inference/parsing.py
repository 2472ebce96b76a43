"""How the output of a request is parsed."""

from __future__ import annotations

import json

from cluster.wire.output_parsing import parsing_to_wire
from penstock.internal.v1 import replica_pb2 as pb
from penstock.models import Capabilities, OutputParsing, ToolMode
from router.validation import CheckedRequest
from router.validation.values import ChatPrompt


def output_parsing(checked: CheckedRequest, capabilities: Capabilities) -> pb.OutputParsing | None:
    """Return what `parsing_of` does, on the wire."""
    parsing = parsing_of(checked, capabilities)
    return None if parsing is None else parsing_to_wire(parsing)


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
