"""Conversations as chat templates get them: the values that `transformers` and vLLM's server pass."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from penstock.models import Tool, ToolCall
from router.tokens.roles import ImagePlace, Said
from router.tokens.template import Turn

_ID_CHARACTERS = 9
"""Length of the ids of tool calls that some templates insist on."""
_CACHED_CHARACTERS = 65_536
"""Most characters of tools that are kept in their form for templates."""


@dataclass(frozen=True, slots=True)
class Form:
    """Form in which a template takes messages. The default is that of vLLM's server."""

    parts: frozenset[str] = frozenset()
    """Roles whose content is always passed as a list of parts."""
    knows_parts: frozenset[str] = frozenset()
    """Roles whose content is passed as a list of parts where it has several."""
    text_arguments: bool = False
    """Whether the arguments of tool calls are passed as text."""
    no_content: bool = False
    """Whether the content beside tool calls is passed as none where it is empty."""
    short_ids: bool = False
    """Whether ids of tool calls are cut to their last nine characters."""

    def turns(self, messages: Sequence[Said]) -> list[Turn]:
        """Return the messages as the template takes them."""
        return [self._turn(message) for message in messages]

    def _turn(self, message: Said) -> Turn:
        turn: dict[str, Any] = {"role": message.role, "content": self._content(message)}
        if message.tool_calls:
            turn["tool_calls"] = [self._call(call) for call in message.tool_calls]
        if message.reasoning:
            # Templates know one of the two names.
            turn["reasoning"] = turn["reasoning_content"] = message.reasoning
        if message.tool_call_id:
            turn["tool_call_id"] = self._id(message.tool_call_id)
        if message.name:
            turn["name"] = message.name
        return turn

    def _content(self, message: Said) -> str | list[dict[str, str]] | None:
        if message.role in self.parts or (message.parts and message.role in self.knows_parts):
            return [_part(text) for text in message.parts or (message.content,)]
        if message.tool_calls and self.no_content and message.blank:
            return None
        return message.content

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments: Any = json.loads(call.arguments) if call.arguments else {}
        if self.text_arguments:
            arguments = call.arguments or "{}"
        named = {"id": self._id(call.id)} if call.id else {}
        return {**named, "type": "function", "function": {"name": call.name, "arguments": arguments}}

    def _id(self, call_id: str) -> str:
        return call_id[-_ID_CHARACTERS:] if self.short_ids else call_id


def _part(text: str) -> dict[str, str]:
    return {"type": "image"} if isinstance(text, ImagePlace) else {"type": "text", "text": text}


def tools_as_objects(tools: tuple[Tool, ...]) -> list[dict[str, Any]] | None:
    """Return tools as templates get them; None for none. Do not change the result."""
    if not tools:
        return None
    if sum(len(tool.parameters) + len(tool.description) for tool in tools) > _CACHED_CHARACTERS:
        return _as_objects(tools)
    return _as_objects_cached(tools)


def _as_objects(tools: tuple[Tool, ...]) -> list[dict[str, Any]]:
    return [_as_object(tool) for tool in tools]


# Agents send the same tools with every request.
_as_objects_cached = lru_cache(maxsize=64)(_as_objects)


def _as_object(tool: Tool) -> dict[str, Any]:
    # What is not given is null, as in vLLM's server: templates ask for it.
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description or None,
        "parameters": json.loads(tool.parameters) if tool.parameters else None,
    }
    return {"type": "function", "function": {**function, **({"strict": True} if tool.strict else {})}}
