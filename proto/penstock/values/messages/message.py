"""Chat messages, also as the dictionaries of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.models import ToolCall
from penstock.v1 import types_pb2
from penstock.values.fields import build, unfit
from penstock.values.messages.images import IMAGE_TYPES, Image, read_image
from penstock.values.objects import Fields, is_list, parse_object, shown
from penstock.values.unsupported import CALL_FUNCTION, IMAGE_PART, MESSAGE, TEXT_PART, TOOL_CALL

_TEXT_OF = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Field with the text of a part, by the part's type."""
_WITHOUT_TEXT = ("assistant", "tool")
"""Roles whose messages may have no text: an answer of calls or reasoning alone, and a tool that returned nothing."""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: str
    """Role of the speaker: "system", "user", "assistant", "tool" or another one of the model's chat template."""
    content: str | Sequence[str | Image] = ""
    """Text, or parts: texts and images."""
    name: str = ""
    """Name of the speaker, where the model's chat template shows it."""
    tool_calls: Sequence[ToolCall] = ()
    """Calls of tools that an earlier answer made."""
    tool_call_id: str = ""
    """Id of the call whose result this is; with role "tool"."""
    reasoning: str = ""
    """Reasoning of an earlier answer. Many chat templates show it in the last turn only."""


def message_to_proto(message: Message | Mapping[str, Any], where: str) -> types_pb2.ChatMessage:
    """Convert a message, also from a dictionary of OpenAI's API: {"role": "user", "content": "Hi"}.

    Args:
        message: the message or dictionary.
        where: path of the message in the request, for errors.

    Raises:
        ValueError: a field is missing, is set and not supported, or is not Unicode; names it.
        TypeError: a field is of another type; names it.
    """
    if isinstance(message, Mapping):
        fields = Fields(where, message, ignore_unknown=False)
        message = read_message(fields)
        fields.leftovers(MESSAGE)
    content = message.content
    text, parts = (content, None) if isinstance(content, str) or not is_list(content) else ("", content)
    if parts is not None and len(parts) == 1 and isinstance(parts[0], str):
        text, parts = parts[0], None
    return build(
        types_pb2.ChatMessage,
        f"{where}.",
        role=message.role,
        content=text,
        parts=parts and [_part_to_proto(part, f"{where}.parts[{index}].") for index, part in enumerate(parts)],
        name=message.name,
        tool_calls=[
            _call_to_proto(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)
        ],
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning,
    )


def _part_to_proto(part: object, where: str) -> types_pb2.ContentPart:
    if isinstance(part, Image):
        image = build(types_pb2.Image, f"{where}image.", data=part.data)
        return types_pb2.ContentPart(image=image)
    return build(types_pb2.ContentPart, where, text=part)


def _call_to_proto(call: object, where: str) -> types_pb2.ToolCall:
    if not isinstance(call, ToolCall):
        raise unfit(where, "a ToolCall", call)
    return build(types_pb2.ToolCall, f"{where}.", id=call.id, name=call.name, arguments=call.arguments)


# --- dictionaries of OpenAI's API -------------------------------------------------------------------------------------


def read_message(fields: Fields) -> Message:
    """Read a message. Fields that are not supported are left.

    Raises:
        BodyError: names the field that is wrong.
    """
    role = fields.required("role")
    return Message(
        role,
        _content(fields, role),
        name=fields.text("name"),
        tool_calls=_tool_calls(fields),
        tool_call_id=fields.text("tool_call_id"),
        reasoning=_reasoning(fields),
    )


def _content(fields: Fields, role: str) -> str | tuple[str | Image, ...]:
    content = fields.take("content")
    if content is None:
        if role not in _WITHOUT_TEXT:
            raise fields.wrong("content", "is required")
        return ""
    if isinstance(content, str):
        return content
    if not is_list(content):
        raise fields.wrong("content", f"must be text or a list of parts, got {shown(content)}")
    parts = tuple(_part(fields, f"content[{index}]", part) for index, part in enumerate(content))
    if not parts:
        return ""
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts


def _part(message: Fields, where: str, part: object) -> str | Image:
    if isinstance(part, str | Image):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and kind in (*IMAGE_TYPES, "image"):
        fields = message.child(where, part)
        image = read_image(fields)
        message.also_ignored(fields.leftovers(IMAGE_PART))
        return image
    name = _TEXT_OF.get(kind) if isinstance(kind, str) else None
    if name is None and isinstance(kind, str):
        raise message.wrong(where, f"must be text or an image, got a part of type {shown(kind)}")
    if not isinstance(part, Mapping) or name is None or not isinstance(part.get(name), str):
        raise message.wrong(where, f'must be {{"type": "text", "text": ...}}, got {shown(part)}')
    fields = message.child(where, part)
    fields.take("type")
    text = fields.text(name)
    message.also_ignored(fields.leftovers(TEXT_PART))
    return text


def _tool_calls(message: Fields) -> tuple[ToolCall, ...]:
    return tuple(
        call if isinstance(call, ToolCall) else _tool_call(message, message.child(f"tool_calls[{index}]", call))
        for index, call in enumerate(message.list("tool_calls"))
    )


def _tool_call(message: Fields, call: Fields) -> ToolCall:
    kind, call_id = call.text("type"), call.text("id")
    if kind not in ("", "function"):
        raise call.wrong("type", f'must be "function", got {shown(kind)}')
    function = call.object("function")
    if function is None:
        raise call.wrong("function", "is required")
    name, arguments = function.required("name"), function.take("arguments")
    if isinstance(arguments, Mapping):
        arguments = function.json("arguments", arguments)
    if arguments is not None and not isinstance(arguments, str):
        raise function.wrong("arguments", f"must be the text of a JSON object, got {shown(arguments)}")
    if arguments and parse_object(arguments) is None and function.ignores("arguments"):
        # The model's own text is at times invalid, or cut. Refused, it would end the conversation for good.
        arguments = ""
    message.also_ignored((*function.leftovers(CALL_FUNCTION), *call.leftovers(TOOL_CALL)))
    return ToolCall(call_id, name, arguments or "")


def _reasoning(fields: Fields) -> str:
    """Return the reasoning, which servers name in two ways."""
    reasoning, older = fields.text("reasoning"), fields.text("reasoning_content")
    if reasoning and older and reasoning != older:
        raise fields.wrong("reasoning_content", "must equal reasoning where both are given")
    return reasoning or older
