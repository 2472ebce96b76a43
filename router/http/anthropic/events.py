"""Events of a generation as those of Anthropic's streams, and whole messages. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.values.objects import parse_object
from router.call_context import text_event
from router.http.anthropic.errors import error_object
from router.http.anthropic.place import StreamPlace
from router.http.chunks import queue_place, unenforced_of
from router.http.compact import compact
from router.http.errors import HttpError
from router.inference.servicer import raise_if_stopped

_SIGNATURE = "penstock"
"""Signature of reasoning, which clients send back with it. Nothing is signed: the reasoning is the model's own text."""
_SPACE = " \t\r\n"
"""White space of models. That of a script, as before Chinese paragraphs, is text."""


class MessageEvents:
    """Encoder of one stream. Its content is a list of blocks, one open at a time."""

    def __init__(
        self,
        model: str,
        called: str = "",
        *,
        event_ids: bool = False,
        after: StreamPlace | None = None,
        continues: bool = False,
    ) -> None:
        """Begin a stream, or go on with one.

        Args:
            model: as the client wrote it.
            called: the client's own id of the request, if it has one.
            event_ids: whether events have ids, with which a client can come back.
            after: place from which a client that came back wants to go on.
            continues: whether the answer goes on with a text of the client's.
        """
        self.request_id = ""
        """The cluster's id of the request; empty until the first event."""
        self._model, self._called, self._event_ids = model, called, event_ids
        self._continues = continues
        place = after or StreamPlace(0)
        self._begun = after is not None
        self._tokens = place.tokens
        """Output tokens of all deltas that were written whole."""
        self._index = place.index
        """Number of the open block, or of the last one."""
        self._open = place.open
        """Type of the open block; empty for none."""
        self._head = self._head_of(self._open) if self._open else ""
        """Beginning of an event with more text of the open block."""
        self._lines: list[tuple[str, str]] = []
        """Events of the delta that is being written, each with its id."""
        self._between = True
        """Whether no text of that delta was written yet. A client can come back only between deltas."""

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
                self._start(event.started.prompt_tokens)
                return self._written()
            case "finished":
                return self._end(event.finished)
            case _:
                return b""

    def text(self, index: int, offset: int, token_ids: Sequence[int], text: str) -> bytes:
        """Return the lines of output that is only text."""
        if self._open != "text":
            return self._delta(text_event(index, offset, token_ids, text).delta)
        # Nearly every token.
        self._tokens = offset + len(token_ids)
        return f"{self._id()}{self._head}{encode_basestring(text)}}}}}\n\n".encode() if text else b""

    def failed(self, error: HttpError) -> bytes:
        """Return the last event of a stream that fails."""
        fields = error_object(error, self._called or self.request_id)
        fields["error"] |= error.again()
        return error.retry_line() + _event("error", fields).encode()

    def _start(self, prompt_tokens: int) -> None:
        if self._begun:
            return
        self._begun = True
        message = {
            **_message(self.request_id, self._model, [], None, None),
            "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
        }
        self._add("message_start", {"message": message})

    def _delta(self, delta: api.Delta) -> bytes:
        after = delta.offset + len(delta.token_ids)
        if self._open == "text" and not delta.reasoning and not delta.tool_calls:
            return self.text(delta.choice_index, delta.offset, delta.token_ids, delta.text)
        self._tokens = delta.offset
        self._start(0)
        calls = list(delta.tool_calls)
        while calls and not calls[0].id and self._open == "tool_use":
            # They belong to the open call. What a merged delta has beside them came behind them.
            self._more(calls.pop(0).arguments)
        self._say("thinking", delta.reasoning, {"thinking": "", "signature": ""})
        self._say("text", delta.text, {"text": ""})
        for call in calls:
            if call.id:
                self._close()
                # A client that came back behind this start would get it again: it comes from the delta.
                self._between = False
                self._block("tool_use", {"id": _call_id(call.id), "name": call.name, "input": {}})
            if call.arguments:
                self._more(call.arguments)
        self._tokens = after
        if self._lines:
            self._lines[-1] = (self._id(), self._lines[-1][1])
        return self._written()

    def _say(self, kind: str, text: str, fields: Mapping[str, Any]) -> None:
        """Write text of a type of block. `fields` are those of one that begins with it."""
        if self._open != kind:
            text = begun(text, continues=self._continues and self._index < 0)
        if text:
            self._block(kind, fields)
            self._more(text)

    def _block(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Open a block unless one of its type is open."""
        if self._open == kind:
            return
        self._close()
        self._index += 1
        self._open = kind
        self._head = self._head_of(kind)
        self._add("content_block_start", {"index": self._index, "content_block": {"type": kind, **fields}})

    def _head_of(self, kind: str) -> str:
        delta, name = _DELTAS[kind]
        return (
            "event: content_block_delta\n"
            f'data: {{"type":"content_block_delta","index":{self._index},"delta":{{"type":"{delta}","{name}":'
        )

    def _more(self, text: str) -> None:
        self._between = False
        self._lines.append(("", f"{self._head}{encode_basestring(text)}}}}}\n\n"))

    def _close(self) -> None:
        if not self._open:
            return
        if self._open == "thinking":
            delta = {"type": "signature_delta", "signature": _SIGNATURE}
            self._lines.append(("", _event("content_block_delta", {"index": self._index, "delta": delta})))
        self._open = ""
        self._add("content_block_stop", {"index": self._index})

    def _end(self, finished: api.Finished) -> bytes:
        raise_if_stopped({choice.finish_reason for choice in finished.choices})
        choice = finished.choices[0]
        reason, sequence = _stop(choice.finish_reason, choice.stop_match)
        delta = {
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": _usage(finished.usage),
            **unenforced_of(finished),
        }
        self._start(finished.usage.prompt_tokens)
        self._close()
        # A client that has these has everything.
        self._lines += [("", _event("message_delta", delta)), ("", _event("message_stop", {}))]
        return self._written()

    def _add(self, name: str, fields: Mapping[str, Any]) -> None:
        """Write an event that has no text of the output."""
        self._lines.append((self._id() if self._between else "", _event(name, fields)))

    def _id(self) -> str:
        """Return the line with the id of the event that was written last."""
        if not self._event_ids:
            return ""
        return f"id: {StreamPlace(self._tokens, self._index, self._open).event_id()}\n"

    def _written(self) -> bytes:
        lines, self._lines, self._between = self._lines, [], True
        return "".join([part for line in lines for part in line]).encode()


_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""Type of a block's deltas, and the name of their text."""


def begun(text: str, *, continues: bool = False) -> str:
    """Return the text that a block begins with: models write empty lines around reasoning and calls, and clients show
    them, and fail on blocks that have nothing else. `continues`: whether it goes on with a text of the client's.
    """
    return text if continues else text.lstrip(_SPACE)


def message_object(reply: api.GenerateResponse, model: str, *, continues: bool = False) -> dict[str, Any]:
    """Return a whole answer. `continues`: whether it goes on with a text of the client's."""
    choice = reply.choices[0]
    content: list[dict[str, Any]] = []
    if reasoning := begun(choice.reasoning, continues=continues):
        content.append({"type": "thinking", "thinking": reasoning, "signature": _SIGNATURE})
    if text := begun(choice.text, continues=continues and not content):
        content.append({"type": "text", "text": text})
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
    found = parse_object(text or "{}")
    return {"_invalid_json": text} if found is None else found


def _event(name: str, fields: Mapping[str, Any]) -> str:
    return f"event: {name}\ndata: {compact({'type': name, **fields})}\n\n"


def _call_id(call_id: str) -> str:
    """Return the id of a call in Anthropic's form."""
    return f"toolu_{call_id.removeprefix('call_')}"
