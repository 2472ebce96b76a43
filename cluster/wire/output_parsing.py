"""Conversion of what routers and replicas tell each other of parsed output."""

from __future__ import annotations

from penstock.internal.v1 import replica_pb2 as pb
from penstock.models import OutputParsing, ParsedDelta, Tool, ToolMode
from penstock.v1 import types_pb2 as types

_MODES = {
    ToolMode.AUTO: types.TOOL_CHOICE_MODE_AUTO,
    ToolMode.NONE: types.TOOL_CHOICE_MODE_NONE,
    ToolMode.REQUIRED: types.TOOL_CHOICE_MODE_REQUIRED,
}
_MODES_FROM_WIRE = {number: mode for mode, number in _MODES.items()}


def parsing_to_wire(parsing: OutputParsing) -> pb.OutputParsing:
    return pb.OutputParsing(
        tools=[
            types.Tool(name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict)
            for tool in parsing.tools
        ],
        tool_choice=_MODES[parsing.mode],
        single_call=parsing.single_call,
        without_reasoning=parsing.without_reasoning,
        template_kwargs=parsing.template_kwargs,
    )


def parsing_from_wire(wire: pb.OutputParsing) -> OutputParsing:
    """Convert instructions; an unknown choice of tools is AUTO."""
    return OutputParsing(
        tools=tuple(Tool(tool.name, tool.description, tool.parameters, tool.strict) for tool in wire.tools),
        mode=_MODES_FROM_WIRE.get(wire.tool_choice, ToolMode.AUTO),
        single_call=wire.single_call,
        without_reasoning=wire.without_reasoning,
        template_kwargs=wire.template_kwargs,
    )


def parsed_to_wire(index: int, parsed: ParsedDelta) -> pb.DeltaParsed:
    """Convert the parsed output of the delta with this index."""
    wire = pb.DeltaParsed(delta=index, text=parsed.text, reasoning=parsed.reasoning)
    for call in parsed.tool_calls:
        wire.tool_calls.add(index=call.index, id=call.id, name=call.name, arguments=call.arguments)
    return wire
