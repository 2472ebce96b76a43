"""Chat messages, also as the dictionaries that other APIs use."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.v1 import types_pb2
from penstock.values.fields import build, shown, unfit
from penstock.values.unsupported import MESSAGE, TEXT_PART, UNKNOWN

_FIELDS = ("role", "content")
_TEXT_PARTS = ("text", "input_text", "output_text")


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message; `role` is "system", "user", "assistant" or another role of the model's template."""

    role: str
    content: str


def message_to_proto(message: Message | Mapping[str, Any], where: str) -> types_pb2.ChatMessage:
    """Convert a message, also from a dictionary: {"role": "user", "content": "Hi"}.

    Content of a dictionary may be a list of text parts, which are joined by line ends, as vLLM's server does. Fields
    other than role and content may only have values that change nothing, such as None, false or empty ones.

    Args:
        message: the message or dictionary.
        where: path of the message in the request, for errors.

    Raises:
        ValueError: a field is missing, is set and not supported, or is not Unicode; names it.
        TypeError: a field is no text; names it.
    """
    role, content = (message.role, message.content) if isinstance(message, Message) else _fields_of(message, where)
    return build(types_pb2.ChatMessage, f"{where}.", role=role, content=content)


def _fields_of(message: Mapping[str, Any], where: str) -> tuple[Any, Any]:
    for name, value in message.items():
        if name not in _FIELDS and value and not MESSAGE.get(name, UNKNOWN).accepts(value):
            near = difflib.get_close_matches(str(name), _FIELDS, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{where}.{name}: is not supported; a message has role and content{hint}")
    for name in _FIELDS:
        if message.get(name) is None:
            raise ValueError(f"{where}.{name}: is required, got {shown(dict(message))}")
    content = message["content"]
    if isinstance(content, Sequence) and not isinstance(content, str | bytes | bytearray):
        content = "\n".join(_text_of(part, f"{where}.content[{index}]") for index, part in enumerate(content))
    return message["role"], content


def _text_of(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
        for name, value in part.items():
            if name not in ("type", "text") and value and not TEXT_PART.get(name, UNKNOWN).accepts(value):
                raise ValueError(f"{where}.{name}: is not supported, got {shown(value)}")
        return str(part["text"])
    raise unfit(where, 'text or {"type": "text", "text": ...}', part)
