"""Events of a generation as those of Anthropic's streams, and whole messages. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.http.anthropic.errors import error_object
from router.http.chunks import queue_place, unenforced_of
from router.http.errors import HttpError
from router.inference.servicer import raise_if_stopped

_SIGNATURE = "penstock"
"""Signature of reasoning, which clients send back with it. Nothing is signed: the reasoning is the model's own text."""


class MessageEvents:
    """Encoder of one stream. Its content is a list of blocks, one open at a time."""

    def __init__(self, model: str, called: str = "") -> None:
        """`model`: as the client wrote it. `called`: the client's own id of the request, if it has one."""
        self.request_id = ""
        """The cluster's id of the request; empty until the first event."""
        self._model, self._called = model, called
        self._begun = False
        self._index = -1
        """Number of the open block, or of the last one."""
        self._open = ""
        """Type of the open block; empty for none."""
        self._head = ""
        """Beginning of an event with more text of the open block."""

    def opened(self, request_id: str) -> None:
        """Learn the cluster's id of the request, before its first event."""
        self.request_id = request_id

    def of(self, event: api.StreamGenerateResponse) -> bytes:
        """Return the lines of an event; empty where it has none.

        Raises:
            DeadlineError, CancelledError: the choice was stopped from outside, so the answer is not complete.
        """
        match event.WhichOneof("event"):
            case "delta":
                return self._delta(event.delta)
            case "queued":
                return queue_place(event.queued)
            case "started":
                return self._start(event.started.prompt_tokens)
            case "finished":
                return self._end(event.finished)
            case _:
                return b""

    def failed(self, error: HttpError) -> bytes:
        """Return the last event of a stream that fails."""
        return _event("error", error_object(error, self._called or self.request_id))

    def _start(self, prompt_tokens: int) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        message = {
            **_message(self.request_id, self._model, [], None, None),
            "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
        }
        return _event("message_start", {"type": "message_start", "message": message})

    def _delta(self, delta: api.Delta) -> bytes:
        if self._open == "text" and not delta.reasoning and not delta.tool_calls:
            # Nearly every token.
            return f"{self._head}{encode_basestring(delta.text)}}}}}\n\n".encode() if delta.text else b""
        lines = [self._start(0)]
        if delta.reasoning:
            lines += [self._block("thinking", {"thinking": "", "signature": ""}), self._more(delta.reasoning)]
        if delta.text:
            lines += [self._block("text", {"text": ""}), self._more(delta.text)]
        for call in delta.tool_calls:
            if call.id:
                block = {"id": _call_id(call.id), "name": call.name, "input": {}}
                lines += [self._close(), self._block("tool_use", block)]
            if call.arguments:
                lines.append(self._more(call.arguments))
        return b"".join(lines)

    def _block(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        """Open a block unless one of its type is open."""
        if self._open == kind:
            return b""
        closed = self._close()
        self._index += 1
        self._open = kind
        delta, name = _DELTAS[kind]
        self._head = (
            "event: content_block_delta\n"
            f'data: {{"type":"content_block_delta","index":{self._index},"delta":{{"type":"{delta}","{name}":'
        )
        block = {"type": "content_block_start", "index": self._index, "content_block": {"type": kind, **fields}}
        return closed + _event("content_block_start", block)

    def _more(self, text: str) -> bytes:
        return f"{self._head}{encode_basestring(text)}}}}}\n\n".encode()

    def _close(self) -> bytes:
        if not self._open:
            return b""
        lines = b""
        if self._open == "thinking":
            delta = {"type": "signature_delta", "signature": _SIGNATURE}
            lines = _event("content_block_delta", {"type": "content_block_delta", "index": self._index, "delta": delta})
        self._open = ""
        return lines + _event("content_block_stop", {"type": "content_block_stop", "index": self._index})

    def _end(self, finished: api.Finished) -> bytes:
        raise_if_stopped({choice.finish_reason for choice in finished.choices})
        choice = finished.choices[0]
        reason, sequence = _stop(choice.finish_reason, choice.stop_match)
        delta = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": _usage(finished.usage),
            **unenforced_of(finished),
        }
        lines = [self._start(finished.usage.prompt_tokens), self._close(), _event("message_delta", delta)]
        return b"".join([*lines, _event("message_stop", {"type": "message_stop"})])


_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""Type of a block's deltas, and the name of their text."""


def message_object(reply: api.GenerateResponse, model: str) -> dict[str, Any]:
    """Return a whole answer."""
    choice = reply.choices[0]
    content: list[dict[str, Any]] = []
    if choice.reasoning:
        content.append({"type": "thinking", "thinking": choice.reasoning, "signature": _SIGNATURE})
    if choice.text:
        content.append({"type": "text", "text": choice.text})
    content += [
        {"type": "tool_use", "id": _call_id(call.id), "name": call.name, "input": _arguments(call.arguments)}
        for call in choice.tool_calls
    ]
    reason, sequence = _stop(choice.finish_reason, choice.stop_match)
    message = _message(reply.request_id, model, content, reason, sequence)
    return {**message, "usage": _usage(reply.usage), **unenforced_of(reply)}


def _message(
    request_id: str, model: str, content: list[dict[str, Any]], reason: str | None, sequence: str | None
) -> dict[str, Any]:
    return {
        "id": f"msg_{request_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": sequence,
    }


def _usage(usage: types.Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - min(usage.cached_tokens, usage.prompt_tokens),
        "cache_read_input_tokens": min(usage.cached_tokens, usage.prompt_tokens),
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.output_tokens,
    }


def _stop(reason: types.FinishReason.ValueType, match: str) -> tuple[str, str | None]:
    match reason:
        case types.FINISH_REASON_TOOL_CALLS:
            return "tool_use", None
        case types.FINISH_REASON_LENGTH:
            return "max_tokens", None
        case _ if match:
            return "stop_sequence", match
        case _:
            return "end_turn", None


def _arguments(text: str) -> dict[str, Any]:
    """Return arguments as an object. Those that are cut or invalid become one field with the model's own text."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"_invalid_json": text}


def _event(name: str, fields: Mapping[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(fields, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def _call_id(call_id: str) -> str:
    """Return the id of a call in Anthropic's form."""
    return f"toolu_{call_id.removeprefix('call_')}"
