"""Messages of Anthropic's API as those of a chat. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

from penstock.v1 import types_pb2 as types
from penstock.values.messages.images import check_media_type, from_base64, url_problem
from penstock.values.objects import BodyError, Fields, shown
from penstock.values.unsupported import Unsupported

_HINT = Unsupported(always_neutral=True)
_BLOCK: Mapping[str, Unsupported] = {
    "cache_control": _HINT,
    "citations": Unsupported(([], {"enabled": False})),
    "signature": _HINT,
    "caller": _HINT,
    "toolset_name": _HINT,
    # No chat template shows it. What failed, the text of the result says.
    "is_error": Unsupported((False,), changes_answers=False),
}
_BILLING = "x-anthropic-billing-header"
"""Beginning of a system block that is no text for the model. It differs from conversation to conversation, so that none
would find the rest of its system prompt in the prefix cache."""

_Block: TypeAlias = tuple[str, object]
"""Block of a message, after its place in the body."""


def read_system(fields: Fields) -> Iterator[types.ChatMessage]:
    """Yield the system message of a body, if it has one.

    Raises:
        BodyError: it is none; names the field.
    """
    system = fields.take("system")
    if isinstance(system, list):
        parts = [_text_block(fields, f"system[{index}]", block) for index, block in enumerate(system)]
        system = "\n".join(part for part in parts if not part.startswith(_BILLING))
    if system is not None and not isinstance(system, str):
        raise fields.wrong("system", f"must be text or a list of text blocks, got {shown(system)}")
    if system:
        yield types.ChatMessage(role="system", content=system)


def read_turns(fields: Fields) -> Iterator[types.ChatMessage]:
    """Yield the messages of a body. Those of one role that follow each other are one turn.

    Raises:
        BodyError: one can't be served as written; names the field.
    """
    messages = fields.take("messages")
    if not isinstance(messages, list) or not messages:
        raise fields.wrong("messages", f"must be a list of at least one message, got {shown(messages)}")
    for role, parts in groupby(_turns(fields, messages), key=lambda turn: turn[0]):
        blocks = [block for _, of_one in parts for block in of_one]
        match role:
            case "user":
                yield from _user(fields, blocks)
            case "assistant":
                yield _assistant(fields, blocks)
            case _:
                yield types.ChatMessage(
                    role="system", content="\n".join(_text_block(fields, place, block) for place, block in blocks)
                )


def _turns(fields: Fields, messages: Sequence[object]) -> Iterator[tuple[str, Sequence[_Block]]]:
    """Yield the role of each message, and its blocks."""
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise fields.wrong(where, f"must be an object, got {shown(message)}")
        turn = fields.child(where, message)
        role, content = turn.text("role"), turn.take("content")
        if role not in ("user", "assistant", "system"):
            raise turn.wrong("role", f"must be user, assistant or system, got {shown(role)}")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list):
            raise turn.wrong("content", f"must be text or a list of blocks, got {shown(content)}")
        if role == "user" and not content:
            raise turn.wrong("content", "must have at least one block, got []")
        fields.also_ignored(turn.leftovers())
        yield role, [(f"{where}.content[{number}]", block) for number, block in enumerate(content)]


def _user(fields: Fields, blocks: Sequence[_Block]) -> Iterator[types.ChatMessage]:
    """Yield the results of tools, and what the user says and shows, in their order."""
    parts: list[types.ContentPart] = []
    for place, block in blocks:
        if not (isinstance(block, dict) and block.get("type") == "tool_result"):
            parts.append(_part(fields, place, block))
            continue
        if parts:
            yield _message(parts, role="user")
            parts = []
        result = fields.child(place, block)
        result.take("type")
        content = result.take("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if content is not None and not isinstance(content, list):
            raise result.wrong("content", f"must be text or a list of blocks, got {shown(content)}")
        inner = [_part(fields, f"{place}.content[{number}]", part) for number, part in enumerate(content or ())]
        yield _message(inner, role="tool", tool_call_id=result.text("tool_use_id"))
        fields.also_ignored(result.leftovers(_BLOCK))
    if parts:
        yield _message(parts, role="user")


def _message(parts: Sequence[types.ContentPart], *, role: str, tool_call_id: str = "") -> types.ChatMessage:
    """Return a message. Texts alone are one text: many chat templates know no parts."""
    if any(part.HasField("image") for part in parts):
        return types.ChatMessage(role=role, parts=parts, tool_call_id=tool_call_id)
    content = "\n".join(part.text for part in parts)
    return types.ChatMessage(role=role, content=content, tool_call_id=tool_call_id)


def _assistant(fields: Fields, blocks: Sequence[_Block]) -> types.ChatMessage:
    message = types.ChatMessage(role="assistant")
    texts: list[str] = []
    thoughts: list[str] = []
    for place, block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind not in ("tool_use", "thinking", "redacted_thinking") or not isinstance(block, dict):
            texts.append(_text_block(fields, place, block))
            continue
        found = fields.child(place, block)
        found.take("type")
        if kind == "thinking":
            thoughts.append(found.text("thinking"))
        elif kind == "redacted_thinking":
            # It is written for the server that made it.
            found.take("data")
        else:
            arguments = found.take("input")
            if not isinstance(arguments, dict):
                raise found.wrong("input", f"must be an object, got {shown(arguments)}")
            message.tool_calls.add(
                id=found.text("id"), name=found.text("name"), arguments=json.dumps(arguments, ensure_ascii=False)
            )
        fields.also_ignored(found.leftovers(_BLOCK))
    message.content, message.reasoning = "\n".join(texts), "\n".join(thoughts)
    return message


def _part(fields: Fields, where: str, block: object) -> types.ContentPart:
    if not isinstance(block, dict) or block.get("type") != "image":
        return types.ContentPart(text=_text_block(fields, where, block, "text or image"))
    found = fields.child(where, block)
    found.take("type")
    source = found.object("source")
    if source is None:
        raise found.wrong("source", 'must be {"type": "base64", "media_type": "image/png", "data": ...}, got null')
    if (kind := source.take("type")) != "base64":
        raise source.wrong("type", url_problem(kind))
    check_media_type(f"{source.path}.media_type", source.take("media_type"))
    data = from_base64(f"{source.path}.data", source.take("data"))
    fields.also_ignored((*source.leftovers(), *found.leftovers(_BLOCK)))
    return types.ContentPart(image=types.Image(data=data))


def _text_block(fields: Fields, where: str, block: object, kinds: str = "text") -> str:
    if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
        kind = block.get("type") if isinstance(block, dict) else block
        raise BodyError(where, f"must be a block of type {kinds}, got {shown(kind)}")
    found = fields.child(where, block)
    found.take("type")
    text = found.text("text")
    fields.also_ignored(found.leftovers(_BLOCK))
    return text
