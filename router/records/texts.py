"""Prompt and output of a call for its span, in the form of OpenTelemetry's conventions for generative AI. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.v1 import types_pb2 as types
from router.generation.choice import Choice
from router.validation.values import ChatPrompt, Image, Message, Prompt, TextPrompt

INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
_CUT = "…"


def texts_of(prompt: Prompt | None, choices: Sequence[Choice], most: int) -> Mapping[str, str]:
    """Return the attributes with a call's texts. Token ids have no text.

    Args:
        prompt: what the client sent; None where it is not kept.
        choices: of the call.
        most: characters of the prompt, and of the output. Of a long conversation the newest messages are shown.
    """
    found: dict[str, str] = {}
    match prompt:
        case TextPrompt(text):
            found[INPUT] = _bounded([_message("user", _text(text))], most)
        case ChatPrompt(messages):
            found[INPUT] = _bounded([_message(each.role, *_parts(each)) for each in messages], most)
    finish = types.FinishReason
    outputs = [
        {
            **_message("assistant", _text(choice.output.history.text)),
            "finish_reason": finish.Name(
                choice.end.finish_reason if choice.end is not None else types.FINISH_REASON_UNSPECIFIED
            )
            .removeprefix("FINISH_REASON_")
            .lower(),
        }
        for choice in choices
    ]
    if any(each["parts"][0]["content"] for each in outputs):
        found[OUTPUT] = _bounded(outputs, most)
    return found


def _parts(said: Message) -> list[dict[str, Any]]:
    if said.tool_call_id:
        return [{"type": "tool_call_response", "id": said.tool_call_id, "response": said.content}]
    found = [{"type": "reasoning", "content": said.reasoning}] if said.reasoning else []
    images = [part for part in said.parts if isinstance(part, Image)]
    found += [{"type": "image", "content": f"{each.width} x {each.height} pixels"} for each in images]
    if said.content or not (said.tool_calls or images):
        found.append(_text(said.content))
    calls = [{"type": "tool_call", "id": c.id, "name": c.name, "arguments": c.arguments} for c in said.tool_calls]
    return found + calls


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _message(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def _bounded(messages: Sequence[dict[str, Any]], most: int) -> str:
    """Return messages as JSON with so many characters of text, the newest first of all."""
    kept: list[dict[str, Any]] = []
    for message in reversed(messages):
        if most <= 0:
            break
        parts = []
        for part in message["parts"]:
            name = next(key for key in ("content", "response", "arguments") if key in part)
            text = part[name]
            parts.append({**part, name: text if len(text) <= most else text[: max(0, most)] + _CUT})
            most -= len(text)
        kept.append({**message, "parts": parts})
    return json.dumps(kept[::-1], ensure_ascii=False)
