"""Conversion of tools, and of calls and choices of them."""

from __future__ import annotations

from penstock.models import Tool, ToolCall, ToolChoice, ToolMode
from penstock.v1 import types_pb2

_MODES = {
    ToolMode.AUTO: types_pb2.TOOL_CHOICE_MODE_AUTO,
    ToolMode.NONE: types_pb2.TOOL_CHOICE_MODE_NONE,
    ToolMode.REQUIRED: types_pb2.TOOL_CHOICE_MODE_REQUIRED,
}
_MODES_FROM_WIRE = {number: mode for mode, number in _MODES.items()}


def tool_from_wire(wire: types_pb2.Tool) -> Tool:
    return Tool(wire.name, wire.description, wire.parameters, wire.strict)


def tool_call_from_wire(wire: types_pb2.ToolCall) -> ToolCall:
    return ToolCall(wire.id, wire.name, wire.arguments)


def tool_mode_from_wire(number: types_pb2.ToolChoiceMode.ValueType) -> ToolMode:
    """Convert a mode; unset is AUTO.

    Raises:
        ValueError: the number is unknown.
    """
    if number == types_pb2.TOOL_CHOICE_MODE_UNSPECIFIED:
        return ToolMode.AUTO
    if number not in _MODES_FROM_WIRE:
        raise ValueError(f"unknown choice of tools {number}")
    return _MODES_FROM_WIRE[number]


def tool_choice_to_wire(choice: ToolChoice) -> types_pb2.ToolChoice:
    return types_pb2.ToolChoice(mode=_MODES[choice.mode], names=choice.names)


def tool_choice_from_wire(wire: types_pb2.ToolChoice) -> ToolChoice:
    """Convert a choice.

    Raises:
        ValueError: its mode is unknown.
    """
    return ToolChoice(tool_mode_from_wire(wire.mode), tuple(wire.names))
