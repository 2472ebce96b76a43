"""Marks in place of a conversation's texts. Where they show in a rendered text, the text would show."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Literal, TypeGuard

from penstock.models import Tool, ToolCall
from router.tokens.roles import ImagePlace, Said

# In no template's text. Short, because some templates look at every character.
_WORD = f"m{secrets.token_hex(4)}x"
_KEY = f"{_WORD}k"
"""Name of the one argument of a marked call."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """All that a template gets for one conversation."""

    messages: Sequence[Said]
    variables: Mapping[str, Any]
    """All other variables of the template: JSON values."""
    tools: tuple[Tool, ...] = ()
    documents: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """A thing that a template does not show."""

    kind: Literal["message", "call", "tools", "documents"]
    index: int
    """Position of the message, tool or document."""
    call: int = 0
    """Position of the call in its message."""


def marked(asked: Conversation) -> Conversation:
    """Return a conversation with a mark in place of every text. Conversations of the same shape become equal."""
    ids: dict[str, str] = {}
    messages = [_message(index, message, ids) for index, message in enumerate(asked.messages)]
    tools = tuple(replace(tool, name=_mark("t", index)) for index, tool in enumerate(asked.tools))
    documents = tuple(_document(each, _mark("d", index)) for index, each in enumerate(asked.documents))
    return Conversation(messages, asked.variables, tools, documents)


def digest(asked: Conversation) -> bytes:
    """Return a digest of a marked conversation."""
    found = blake2b(digest_size=16)
    for message in asked.messages:
        found.update(repr(message).encode())
    for tool in asked.tools:
        found.update(repr(tool).encode())
    found.update(json.dumps([asked.documents, asked.variables], sort_keys=True).encode())
    return found.digest()


def lost(asked: Conversation, text: str, *, parts: bool) -> list[Lost]:
    """Return what of a marked conversation a rendered text does not show.

    Args:
        asked: the marked conversation.
        text: what the template made of it.
        parts: whether content was passed as a list of parts.
    """
    # Some write contents in capitals.
    text = text.lower()
    # A list of parts that is written as the list that it is was not understood, nor were arguments.
    raw = [f"{{'{_KEY}': '{_WORD}"]
    if parts:
        raw += [f"'text': '{_WORD}", f'"text": "{_WORD}']
    for each in raw:
        text = text.replace(each, "")
    gone = [each for each, marks in _wanted(asked) if any(mark not in text for mark in marks)]
    return gone or _lost_images(asked, text)


def _lost_images(asked: Conversation, text: str) -> list[Lost]:
    """Return the messages with images where a text has not a place for each, or those that it has moved. Nobody knew
    then which image belongs where: all places look the same.
    """
    images = [(index, part) for index, each in enumerate(asked.messages) for part in each.parts if is_image(part)]
    showing = list(dict.fromkeys(index for index, _image in images))
    if images and text.count(images[0][1].core.lower()) != len(images):
        return [Lost("message", index) for index in showing]
    firsts = ((index, next((p for p in asked.messages[index].parts if not is_image(p)), "")) for index in showing)
    places = [(index, text.find(mark)) for index, mark in firsts if mark]
    return [Lost("message", index) for (index, at), (_, later) in pairwise(places) if at > later]


def is_image(part: str) -> TypeGuard[ImagePlace]:
    """Return whether a part is an image."""
    return isinstance(part, ImagePlace)


def _wanted(asked: Conversation) -> Iterator[tuple[Lost, list[str]]]:
    for index, message in enumerate(asked.messages):
        # The text beside calls may be left out: some models never have both, so their templates show the calls alone.
        if not message.blank and not message.tool_calls:
            yield Lost("message", index), [part for part in message.parts or (message.content,) if not is_image(part)]
        for place, call in enumerate(message.tool_calls):
            arguments = [str(value) for value in json.loads(call.arguments).values()]
            yield Lost("call", index, place), [call.name, *arguments]
    for index, tool in enumerate(asked.tools):
        yield Lost("tools", index), [tool.name]
    for index, document in enumerate(asked.documents):
        if _has_text(document):
            yield Lost("documents", index), [_mark("d", index)]


def _mark(kind: str, *numbers: int) -> str:
    return f"{_WORD}{kind}{'p'.join(map(str, numbers))}z"


def _message(index: int, message: Said, ids: dict[str, str]) -> Said:
    parts = tuple(part if is_image(part) else _mark("c", index, place) for place, part in enumerate(message.parts))
    return Said(
        message.role,
        "" if message.blank else "\n".join(parts) or _mark("c", index),
        index,
        parts=parts,
        name=message.name and "x",
        tool_calls=tuple(
            ToolCall(
                _same_length(call.id, ids),
                _mark("n", index, place),
                json.dumps({_KEY: _mark("a", index, place)}) if call.arguments.strip(" \t\r\n{}") else "{}",
            )
            for place, call in enumerate(message.tool_calls)
        ),
        tool_call_id=_same_length(message.tool_call_id, ids),
        reasoning=message.reasoning and "x",
    )


def _same_length(call_id: str, ids: dict[str, str]) -> str:
    """Return an id as long as another, the same for the same: templates look at the length, and compare ids."""
    if call_id not in ids:
        ids[call_id] = str(len(ids)).rjust(len(call_id), "0")[-len(call_id) :] if call_id else ""
    return ids[call_id]


def _document(value: Any, mark: str) -> Any:
    match value:
        case str():
            return mark if value.strip() else ""
        case dict():
            return {name: _document(each, mark) for name, each in value.items()}
        case list():
            return [_document(each, mark) for each in value]
        case _:
            return value


def _has_text(value: Any) -> bool:
    match value:
        case str():
            return bool(value)
        case dict():
            return any(map(_has_text, value.values()))
        case list():
            return any(map(_has_text, value))
        case _:
            return False
