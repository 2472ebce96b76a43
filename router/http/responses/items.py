"""Items of a conversation: what clients send, and what answers are made of. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.values.messages.images import IMAGE_TYPES
from penstock.values.objects import BodyError, shown
from router.http.responses.events import item_id
from router.http.responses.namespaces import flat_name

Item = Mapping[str, Any]

_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_IMAGE = "input_image"
_REFERENCE = "item_reference"
_ITEM_ID = re.compile(r"[a-z]{2,4}_([0-9a-f]{32})_i?\d{1,6}")
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def read_items(value: object, *, goes_on: bool = False) -> list[Item]:
    """Return a request's input as items. References to stored items stay as they are.

    Args:
        value: the input.
        goes_on: whether a stored response comes before it. Nothing new is needed then.

    Raises:
        BodyError: names the item that can't be read.
    """
    if goes_on and value in (None, "", []):
        return []
    if isinstance(value, str):
        return [_message("user", [{"type": "input_text", "text": value}])]
    if not isinstance(value, list) or not value:
        needed = "must be text or a list of at least one item where previous_response_id is absent"
        raise BodyError("input", f"{needed}, got {shown(value)}")
    return [_item(f"input[{index}]", item) for index, item in enumerate(value)]


def _item(where: str, item: object) -> Item:
    if not isinstance(item, dict):
        raise BodyError(where, f"must be an object, got {shown(item)}")
    match item.get("type") or ("message" if "role" in item else _REFERENCE):
        case "message":
            return _read_message(where, item)
        case "function_call":
            names = ("call_id", "name", "arguments", *(["namespace"] if item.get("namespace") is not None else ()))
            return {**_id_of(item), "type": "function_call", **{name: _text(where, item, name) for name in names}}
        case "function_call_output":
            output = item.get("output")
            if output is None:
                # The tool returned nothing.
                output = ""
            elif not isinstance(output, str):
                output = [
                    _part(f"{where}.output[{i}]", part, "input_text")
                    for i, part in enumerate(_list(where, item, "output"))
                ]
            call_id = _text(where, item, "call_id")
            return {**_id_of(item), "type": "function_call_output", "call_id": call_id, "output": output}
        case "reasoning":
            return _reasoning(where, item)
        case "item_reference":
            return {"type": _REFERENCE, "id": _text(where, item, "id")}
        case other:
            raise BodyError(
                f"{where}.type",
                f"must be message, function_call, function_call_output, reasoning or "
                f"item_reference, got {shown(other)}",
            )


def _read_message(where: str, item: Mapping[str, Any]) -> Item:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise BodyError(f"{where}.role", f"must be one of {', '.join(_ROLES)}, got {shown(role)}")
    kind = "output_text" if role == "assistant" else "input_text"
    if isinstance(content, str):
        parts = [_content(kind, content)]
    else:
        parts = [_part(f"{where}.content[{i}]", part, kind) for i, part in enumerate(_list(where, item, "content"))]
    return _message(str(role), parts, **_id_of(item))


def _message(role: str, content: Sequence[Mapping[str, Any]], **more: str) -> Item:
    return {**more, "type": "message", "role": role, "status": "completed", "content": list(content)}


def _content(kind: str, text: str) -> Mapping[str, Any]:
    return {"type": kind, "text": text, **({"annotations": []} if kind == "output_text" else {})}


def _part(where: str, part: object, kind: str) -> Mapping[str, Any]:
    takes_images = kind == "input_text"
    if isinstance(part, dict):
        if takes_images and part.get("type") in IMAGE_TYPES:
            return _image(part)
        if part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
            return _content(kind, part["text"])
        if part.get("type") == "refusal" and isinstance(part.get("refusal"), str):
            return _content(kind, part["refusal"])
        if part.get("type") not in _TEXT_PARTS:
            kinds = "text or an image" if takes_images else "text"
            raise BodyError(where, f"must be {kinds}, got a part of type {shown(part.get('type'))}")
    raise BodyError(where, f'must be {{"type": "{kind}", "text": ...}}, got {shown(part)}')


def _image(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part with an image. The reader of chats looks at its content."""
    url = part.get("image_url")
    if isinstance(url, Mapping):
        # As in a chat.
        url = url.get("url")
    known = {"type": _IMAGE, "detail": part.get("detail") or "auto", "image_url": url}
    return known if part.get("file_id") is None else {**known, "file_id": part["file_id"]}


def _reasoning(where: str, item: Mapping[str, Any]) -> Item:
    # What a summary says is all that some clients kept of the reasoning.
    kind = "reasoning_text"
    found: list[Mapping[str, Any]] = []
    for name in ("content", "summary"):
        if not found and item.get(name) is not None:
            parts = _list(where, item, name)
            found = [_part(f"{where}.{name}[{index}]", part, kind) for index, part in enumerate(parts)]
    return {**_id_of(item), "type": "reasoning", "summary": [], "content": found, "status": "completed"}


def _id_of(item: Mapping[str, Any]) -> dict[str, str]:
    found = item.get("id")
    return {"id": found} if isinstance(found, str) and found else {}


def _text(where: str, item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise BodyError(f"{where}.{name}", f"must be text, got {shown(value)}")
    return value


def _list(where: str, item: Mapping[str, Any], name: str) -> list[Any]:
    value = item.get(name)
    if not isinstance(value, list):
        raise BodyError(f"{where}.{name}", f"must be text or a list of parts, got {shown(value)}")
    return value


# --- names ------------------------------------------------------------------------------------------------------------


def reference(item: Item) -> str | None:
    """Return the id of the item that this one refers to; None if it is no reference."""
    return str(item["id"]) if item["type"] == _REFERENCE else None


def response_of(id_of_item: str) -> str | None:
    """Return the response that an item belongs to; None for an id that is not of this cluster."""
    found = _ITEM_ID.fullmatch(id_of_item)
    return f"resp_{found[1]}" if found else None


def named(items: Sequence[Item], response_id: str) -> list[Item]:
    """Give every item an id."""
    return [
        item if "id" in item else {"id": item_id(_PREFIXES[item["type"]], response_id, f"i{index}"), **item}
        for index, item in enumerate(items)
    ]


# --- messages ---------------------------------------------------------------------------------------------------------


def chat_messages(instructions: str, items: Sequence[tuple[str, Item]]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the messages of a chat; and for each of them and each call in them the field of the body that it comes
    from, by their paths in the chat.

    An answer with its reasoning and its calls becomes one message. Reasoning without an answer is left out: no chat
    template shows it.

    Args:
        instructions: text of the system message; empty for none.
        items: items, each with the field that it comes from.
    """
    messages: list[dict[str, Any]] = []
    places: dict[str, str] = {}

    def add(message: dict[str, Any], place: str) -> dict[str, Any]:
        places[f"messages[{len(messages)}]"] = place
        messages.append(message)
        return message

    if instructions:
        add({"role": "system", "content": instructions}, "instructions")
    turn: dict[str, Any] | None = None
    """Message of the assistant to which calls belong."""
    reasoning = ""
    for place, item in items:
        kind, content = item["type"], _chat_content(item)
        if kind == "reasoning":
            turn, reasoning = None, reasoning + said(item)
            continue
        thought = {"reasoning_content": reasoning} if reasoning else {}
        if kind == "function_call":
            if turn is None:
                turn = add({"role": "assistant", "content": None, **thought}, place)
            name = flat_name(item.get("namespace", ""), item["name"])
            function = {"name": name, "arguments": item["arguments"]}
            calls = turn.setdefault("tool_calls", [])
            places[f"messages[{len(messages) - 1}].tool_calls[{len(calls)}]"] = place
            calls.append({"id": item["call_id"], "type": "function", "function": function})
        elif kind == "function_call_output":
            turn = None
            # Its parts have another name than those of messages.
            places[f"messages[{len(messages)}].content"] = f"{place}.output"
            add({"role": "tool", "tool_call_id": item["call_id"], "content": content}, place)
        elif item["role"] == "assistant":
            turn = add({"role": "assistant", "content": content, **thought}, place)
        else:
            turn = None
            add({"role": item["role"], "content": content}, place)
        reasoning = ""
    return messages, places


def _chat_content(item: Item) -> str | list[Mapping[str, Any]]:
    """Return the content of an item in a chat. Texts alone are one text: many chat templates know no parts."""
    return list(_parts(item)) if images_of(item) else said(item)


def said(item: Item) -> str:
    """Return the text of an item; empty for a call."""
    content = item.get("content", item.get("output", ""))
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] != _IMAGE)


def images_of(item: Item) -> Sequence[str]:
    """Return the URLs of the images in an item."""
    return [str(part["image_url"]) for part in _parts(item) if part["type"] == _IMAGE]


def _parts(item: Item) -> Sequence[Mapping[str, Any]]:
    content = item.get("content", item.get("output", ""))
    return () if isinstance(content, str) else content
