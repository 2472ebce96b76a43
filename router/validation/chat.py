"""Checks of a conversation: its messages, its tools, and what else its chat template gets."""

from __future__ import annotations

import json
from collections.abc import Iterable

from cluster.image_files import MAX_IMAGES
from penstock.models import Tool, ToolCall, ToolChoice, ToolMode
from penstock.v1 import types_pb2
from penstock.wire import tool_call_from_wire, tool_choice_from_wire, tool_from_wire
from router.validation.images import MAX_BYTES, check_image
from router.validation.schema import json_object_problem, schema_problem
from router.validation.values import ChatPrompt, Image, Message, RequestLimits
from router.validation.violations import Violations, shown, utf8_length

MAX_ROLE_BYTES = 64
MAX_NAME_BYTES = 64
MAX_PARTS = 1_024
MAX_TOOL_CALLS = 128
MAX_CALL_ID_BYTES = 128
MAX_TOOLS = 128
MAX_TOOL_NAME_BYTES = 128
MAX_DOCUMENTS = 128
MAX_KWARGS_BYTES = 16_384
MAX_EFFORT_BYTES = 64
RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
)
"""Variables of chat templates that have a field of their own, or that clients must not set."""
_SPECIAL = "_token"
"""End of the names of special tokens."""
_EFFORT = "reasoning_effort"
_ANSWERS = "assistant"
"""Role of the model, which makes no images."""


def check_chat(
    found: Violations,
    field: str,
    wire: types_pb2.ChatPrompt,
    limits: RequestLimits,
    *,
    choice: ToolChoice,
    effort: str,
) -> ChatPrompt:
    """Check a conversation and convert it.

    Args:
        found: gets what is wrong.
        field: path of the conversation.
        wire: the conversation.
        limits: limits of the operator.
        choice: choice of the tools; it decides which ones the model is shown.
        effort: amount of reasoning; empty for the template's own.
    """
    where = f"{field}.messages"
    if not found.count(where, len(wire.messages), 1, limits.each.max_messages):
        return ChatPrompt(())
    # Before any is opened.
    images = [len(part.image.data) for each in wire.messages for part in each.parts if part.HasField("image")]
    if not found.count(where, len(images), 0, MAX_IMAGES, "images"):
        return ChatPrompt(())
    found.count(where, sum(images), 0, MAX_BYTES, "bytes of images")
    messages = tuple(
        _check_message(found, f"{where}[{index}]", message, limits) for index, message in enumerate(wire.messages)
    )
    found.count(where, sum(map(_bytes, messages)), 0, limits.max_prompt_bytes, "bytes of content")
    if wire.continue_final_message and any(isinstance(part, Image) for part in messages[-1].parts[-1:]):
        found.add(f"{field}.continue_final_message", "must not be set where the last message ends with an image")
    if wire.continue_final_message and messages[-1].tool_calls:
        found.add(f"{field}.continue_final_message", "must not be set where the last message has calls of tools")
    tools = _check_tools(found, f"{field}.tools", wire.tools, limits)
    documents = _check_documents(found, f"{field}.documents", wire.documents, limits)
    _check_kwargs(found, f"{field}.template_kwargs", wire.template_kwargs, limits, effort)
    if choice.mode is ToolMode.AUTO and choice.names:
        # Nothing else keeps the model from calling the others: where it is free, the engine does not constrain it.
        # REQUIRED is a constraint, so there the model sees all of them, and the beginning of the prompt stays the same.
        tools = tuple(tool for tool in tools if tool.name in choice.names)
    return ChatPrompt(messages, wire.continue_final_message, tools, documents, wire.template_kwargs, effort)


def check_tool_choice(found: Violations, field: str, wire: types_pb2.ToolChoice, tools: Iterable[str]) -> ToolChoice:
    """Check a choice of tools against the names of the tools, and convert it."""
    try:
        choice = tool_choice_from_wire(wire)
    except ValueError:
        found.add(f"{field}.mode", f"must be a known mode, got {wire.mode}")
        return ToolChoice()
    known = set(tools)
    if not known and (choice.mode is ToolMode.REQUIRED or choice.names):
        found.add(field, "needs tools")
        return choice
    if choice.mode is ToolMode.NONE and choice.names:
        found.add(f"{field}.names", "must be empty with mode NONE")
    for index, name in enumerate(choice.names):
        if name not in known:
            found.add(f"{field}.names[{index}]", f"must be the name of one of the tools, got {shown(name)}")
        elif name in choice.names[:index]:
            found.add(f"{field}.names[{index}]", f"must not repeat a name, got {shown(name)} again")
    return choice


def _check_message(found: Violations, where: str, wire: types_pb2.ChatMessage, limits: RequestLimits) -> Message:
    found.size(f"{where}.role", wire.role, 1, MAX_ROLE_BYTES)
    found.size(f"{where}.name", wire.name, 0, MAX_NAME_BYTES)
    parts = _check_parts(found, where, wire)
    for name, role in (("tool_calls", "assistant"), ("reasoning", "assistant"), ("tool_call_id", "tool")):
        if getattr(wire, name) and wire.role != role:
            found.add(f"{where}.{name}", f"must be unset unless the role is {role!r}, got role {shown(wire.role)}")
    found.size(f"{where}.tool_call_id", wire.tool_call_id, 0, MAX_CALL_ID_BYTES)
    calls: tuple[ToolCall, ...] = ()
    if found.count(f"{where}.tool_calls", len(wire.tool_calls), 0, MAX_TOOL_CALLS):
        calls = tuple(
            _check_call(found, f"{where}.tool_calls[{index}]", call, limits)
            for index, call in enumerate(wire.tool_calls)
        )
    return Message(
        wire.role,
        wire.content or "\n".join(part for part in parts if isinstance(part, str)),
        parts if len(parts) > 1 or any(isinstance(part, Image) for part in parts) else (),
        name=wire.name,
        tool_calls=calls,
        tool_call_id=wire.tool_call_id,
        reasoning=wire.reasoning,
    )


def _check_parts(found: Violations, where: str, wire: types_pb2.ChatMessage) -> tuple[str | Image, ...]:
    if not wire.parts or not found.count(f"{where}.parts", len(wire.parts), 0, MAX_PARTS):
        return ()
    if wire.content:
        found.add(f"{where}.parts", "must be empty where content is set")
    return tuple(
        _check_part(found, f"{where}.parts[{index}]", part, wire.role) for index, part in enumerate(wire.parts)
    )


def _check_part(found: Violations, where: str, part: types_pb2.ContentPart, role: str) -> str | Image:
    kind = part.WhichOneof("kind")
    if kind is None:
        found.add(where, "must have text or an image")
    if kind != "image":
        return part.text
    if role == _ANSWERS:
        found.add(f"{where}.image", f"must be unset where the role is {_ANSWERS!r}")
    return check_image(found, f"{where}.image", part.image)


def _check_call(found: Violations, where: str, wire: types_pb2.ToolCall, limits: RequestLimits) -> ToolCall:
    found.size(f"{where}.id", wire.id, 0, MAX_CALL_ID_BYTES)
    found.size(f"{where}.name", wire.name, 1, MAX_TOOL_NAME_BYTES)
    if wire.arguments:
        found.add_any(f"{where}.arguments", json_object_problem(wire.arguments, limits.each.max_schema_depth))
    return tool_call_from_wire(wire)


def _check_tools(
    found: Violations, field: str, wire: Iterable[types_pb2.Tool], limits: RequestLimits
) -> tuple[Tool, ...]:
    tools = tuple(map(tool_from_wire, wire))
    if not found.count(field, len(tools), 0, MAX_TOOLS):
        return ()
    total = sum(utf8_length(tool.description) + utf8_length(tool.parameters) for tool in tools)
    if not found.count(field, total, 0, limits.max_prompt_bytes, "bytes of descriptions and parameters"):
        return ()
    names: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"{field}[{index}]"
        if found.size(f"{where}.name", tool.name, 1, MAX_TOOL_NAME_BYTES) and tool.name in names:
            found.add(f"{where}.name", f"must be unique among the tools, got {shown(tool.name)} again")
        names.add(tool.name)
        if tool.parameters and found.size(f"{where}.parameters", tool.parameters, 0, limits.each.max_schema_bytes):
            # A schema that is only shown may have any keyword. The engine judges one that it must follow.
            problem = (
                schema_problem(tool.parameters, limits.each)
                if tool.strict
                else json_object_problem(tool.parameters, limits.each.max_schema_depth)
            )
            found.add_any(f"{where}.parameters", problem)
    return tools


def _check_documents(found: Violations, field: str, wire: Iterable[str], limits: RequestLimits) -> tuple[str, ...]:
    documents = tuple(wire)
    total = sum(map(utf8_length, documents))
    if found.count(field, len(documents), 0, MAX_DOCUMENTS) and found.count(
        field, total, 0, limits.max_prompt_bytes, "bytes"
    ):
        for index, text in enumerate(documents):
            found.add_any(f"{field}[{index}]", json_object_problem(text, limits.each.max_schema_depth))
    return documents


def _check_kwargs(found: Violations, field: str, text: str, limits: RequestLimits, effort: str) -> None:
    if not text or not found.size(field, text, 0, MAX_KWARGS_BYTES):
        return
    if problem := json_object_problem(text, limits.each.max_schema_depth):
        found.add(field, problem)
        return
    variables = json.loads(text)
    for name in variables:
        if name in RESERVED or name.endswith(_SPECIAL):
            found.add(f"{field}.{shown(name)[1:-1]}", "must not be set: chat templates get it from elsewhere")
    if effort and variables.get(_EFFORT, effort) != effort:
        found.add(
            f"{field}.{_EFFORT}", f"must equal reasoning.effort = {shown(effort)}, got {shown(variables[_EFFORT])}"
        )


def _bytes(message: Message) -> int:
    texts = (message.content, message.name, message.reasoning)
    calls = (text for call in message.tool_calls for text in (call.name, call.arguments))
    return sum(map(utf8_length, (*texts, *calls)))
