"""Tools and the choice among them, also as the dictionaries of OpenAI's API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.models import Tool, ToolChoice, ToolMode
from penstock.values.objects import Fields, shown
from penstock.values.unsupported import TOOL, TOOL_FUNCTION

_MODES = tuple(mode.value for mode in ToolMode)


def tool(
    name: str, description: str = "", parameters: str | Mapping[str, Any] | None = None, *, strict: bool = False
) -> Tool:
    """Describe a function that a model may call.

    Args:
        name: name of the function.
        description: what it does, for the model.
        parameters: JSON Schema of its arguments, an object; default: no arguments are described.
        strict: whether the engine follows the schema to the letter.

    Raises:
        ValueError: the schema is no JSON.
    """
    if parameters is None or isinstance(parameters, str):
        return Tool(name, description, parameters or "", strict)
    try:
        text = json.dumps(parameters, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise ValueError("parameters: is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"parameters: must be JSON, as text or as a mapping: {error}") from None
    return Tool(name, description, text, strict)


# --- dictionaries of OpenAI's API -------------------------------------------------------------------------------------


def read_tools(body: Fields) -> tuple[Tool, ...]:
    """Read `tools`: {"type": "function", "function": {"name", "description", "parameters", "strict"}}, or Tools.

    Raises:
        BodyError: names the field that is wrong.
    """
    return tuple(
        each if isinstance(each, Tool) else _tool(body, body.child(f"tools[{index}]", each))
        for index, each in enumerate(body.list("tools"))
    )


def _tool(body: Fields, fields: Fields) -> Tool:
    function = _function(fields)
    name, description = function.required("name"), function.text("description")
    parameters = function.take("parameters")
    if isinstance(parameters, Mapping):
        parameters = function.json("parameters", parameters)
    elif parameters is not None:
        raise function.wrong("parameters", f"must be a JSON Schema, got {shown(parameters)}")
    strict = function.flag("strict")
    body.also_ignored((*function.leftovers(TOOL_FUNCTION), *fields.leftovers(TOOL)))
    return Tool(name, description, parameters or "", strict)


def read_tool_choice(body: Fields) -> ToolChoice | None:
    """Read `tool_choice`: a word, a named function, allowed tools, or a ToolChoice. None where it is absent.

    Raises:
        BodyError: names the field that is wrong.
    """
    value = body.take("tool_choice")
    if value is None or isinstance(value, ToolChoice):
        return value
    if isinstance(value, str):
        return ToolChoice(_mode(body, "tool_choice", value))
    if not isinstance(value, Mapping):
        raise body.wrong("tool_choice", f"must be one of {', '.join(_MODES)}, or an object, got {shown(value)}")
    fields = body.child("tool_choice", value)
    if fields.take("type") == "allowed_tools":
        choice = _allowed(fields)
    else:
        fields = body.child("tool_choice", value)
        function = _function(fields)
        choice = ToolChoice(ToolMode.REQUIRED, (function.required("name"),))
        body.also_ignored(function.leftovers())
    body.also_ignored(fields.leftovers())
    return choice


def _allowed(fields: Fields) -> ToolChoice:
    allowed = fields.object("allowed_tools")
    if allowed is None:
        raise fields.wrong("allowed_tools", "is required")
    mode = _mode(allowed, "mode", allowed.required("mode"))
    tools = allowed.list("tools")
    if not tools:
        raise allowed.wrong("tools", "must be a list of at least one tool")
    names = [_function(allowed.child(f"tools[{index}]", each)).required("name") for index, each in enumerate(tools)]
    fields.also_ignored(allowed.leftovers())
    return ToolChoice(mode, tuple(dict.fromkeys(names)))


def _function(fields: Fields) -> Fields:
    """Return the function of a tool, or of a reference to one."""
    kind = fields.take("type")
    if kind not in (None, "function"):
        raise fields.wrong("type", f'must be "function", got {shown(kind)}')
    function = fields.object("function")
    if function is None:
        beside = "; only /v1/responses has its name beside type" if fields.take("name") is not None else ""
        raise fields.wrong("function", f"is required{beside}")
    return function


def _mode(fields: Fields, name: str, value: str) -> ToolMode:
    if value not in _MODES:
        raise fields.wrong(name, f"must be one of {', '.join(_MODES)}, got {shown(value)}")
    return ToolMode(value)
