"""Events of a generation as chunks of a stream of /v1/chat/completions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from json.encoder import encode_basestring
from typing import Any, Self

from penstock.batch.logprobs import chat_logprobs
from penstock.batch.output import unenforced_fields, usage_object
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.values.results import Receipt, Usage
from penstock.wire import duration_from_wire, logprobs_from_wire, unenforced_from_wire
from router.http.bodies import Asked
from router.http.compact import NULL, compact, numbers, running_usage
from router.http.errors import HttpError
from router.inference.servicer import raise_if_stopped

DONE = b"data: [DONE]\n\n"
_REASONS = {
    types.FINISH_REASON_STOP: "stop",
    types.FINISH_REASON_LENGTH: "length",
    types.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


@dataclass(frozen=True, slots=True)
class ChunkOptions:
    """What a client wants to see in a stream."""

    usage: bool = False
    """Whether a last chunk has the usage."""
    running_usage: bool = False
    """Whether every chunk has the usage so far."""
    token_ids: bool = False
    """Whether chunks have the ids of their tokens."""
    tokens_as_ids: bool = False
    """Whether log probabilities name tokens by their ids."""
    receipt: bool = False
    """Whether the usage has the receipt."""
    event_ids: bool = False
    """Whether chunks have ids, with which a client can come back."""
    received: tuple[int, ...] | None = None
    """Output tokens of each choice that a client which comes back has; None where it begins."""

    @classmethod
    def of(cls, asked: Asked, *, event_ids: bool) -> Self:
        """Take what a request asks for. The stream does not need the rest of it, which may be long."""
        return cls(
            usage=asked.usage,
            running_usage=asked.running_usage,
            token_ids=asked.token_ids,
            tokens_as_ids=asked.tokens_as_ids,
            receipt=asked.receipt,
            event_ids=event_ids,
            received=asked.received,
        )


class Chunks:
    """Encoder of one stream. Every chunk has the same id, creation time and model."""

    def __init__(self, head: Mapping[str, Any], options: ChunkOptions) -> None:
        """`head` has the fields that all chunks share beside their id."""
        self.request_id = ""
        """The cluster's id of the request; empty until the first event."""
        self._fields, self._options = head, options
        self._head = ""
        """Beginning of every chunk."""
        self._received = list(options.received or (0,))
        """Output tokens of each choice that the client has with the next chunk."""
        self._greeted = (1 << len(options.received or ())) - 1
        """Choices whose role was sent, a bit each: an empty set would take 216 bytes of every stream."""
        self._prompt_tokens = 0
        self._output_tokens = 0

    def of(self, event: api.StreamGenerateResponse) -> bytes:
        """Return the lines of an event; empty where it has none.

        Raises:
            DeadlineError, CancelledError: a choice was stopped from outside, so the answer is not complete.
        """
        match event.WhichOneof("event"):
            case "delta":
                return self._delta(event.delta)
            case "queued":
                return queue_place(event.queued)
            case "started":
                # No line: load tests take the first one for the first token.
                self._prompt_tokens = event.started.prompt_tokens
                return b""
            case "finished":
                return self._end(event.finished)
            case _:
                return b""

    def text(self, index: int, offset: int, token_ids: Sequence[int], text: str) -> bytes:
        """Return the lines of output that is only text. Nearly every token comes through here."""
        options = self._options
        self._output_tokens += len(token_ids)
        first = b"" if self._greeted >> index & 1 else self._greeting(index)
        if not text and not (options.token_ids and token_ids):
            return first
        if options.event_ids:
            first += event_id(self._received, index, offset + len(token_ids))
        said = f'"delta":{{"content":{encode_basestring(text)}}}'
        if options.token_ids:
            said += f',"token_ids":{numbers(token_ids)}'
        return first + self._chunk(index, said)

    def failed(self, error: HttpError) -> bytes:
        """Return the last line of a stream that fails; OpenAI's clients raise its error. No [DONE] follows."""
        return error.retry_line() + f"data: {compact(error.in_stream())}\n\n".encode()

    def opened(self, request_id: str) -> None:
        """Learn the cluster's id of the request, before its first event."""
        self.request_id = request_id
        whole = compact({"id": f"chatcmpl-{request_id}", "object": "chat.completion.chunk", **self._fields})
        self._head = f"data: {whole[:-1]},"

    def _greeting(self, index: int) -> bytes:
        if self._greeted >> index & 1:
            return b""
        self._greeted |= 1 << index
        return self._chunk(index, '"delta":{"role":"assistant","content":""}')

    def _delta(self, delta: api.Delta) -> bytes:
        index, text, ids = delta.choice_index, delta.text, delta.token_ids
        reasoning, calls, logprobs = delta.reasoning, delta.tool_calls, NULL
        if not reasoning and not calls and not delta.logprobs:
            return self.text(index, delta.offset, ids, text)
        options = self._options
        self._output_tokens += len(ids)
        first = self._greeting(index)
        if options.event_ids:
            first += event_id(self._received, index, delta.offset + len(ids))
        said = _said(text, reasoning, calls)
        if options.token_ids:
            said += f',"token_ids":{numbers(ids)}'
        if delta.logprobs:
            positions = tuple(map(logprobs_from_wire, delta.logprobs))
            logprobs = compact(chat_logprobs(positions, as_ids=options.tokens_as_ids))
        return first + self._chunk(index, said, logprobs)

    def _end(self, finished: api.Finished) -> bytes:
        raise_if_stopped({choice.finish_reason for choice in finished.choices})
        lines, more = [], unenforced_of(finished)
        for choice in finished.choices:
            lines.append(self._greeting(choice.index))
            reason = f'"{_REASONS[choice.finish_reason]}"'
            lines.append(self._chunk(choice.index, '"delta":{}', reason=reason, more=more))
        if self._options.usage:
            usage = usage_object(Usage.from_proto(finished.usage))
            if self._options.receipt:
                usage["receipt"] = receipt_object(finished.receipt)
            lines.append(f'{self._head}"choices":[],"usage":{compact(usage)}}}\n\n'.encode())
        return b"".join([*lines, DONE])

    def _chunk(
        self, index: int, said: str, logprobs: str = NULL, reason: str = NULL, more: Mapping[str, Any] = {}
    ) -> bytes:
        """Return a chunk of one choice. What it adds, its log probabilities and the reason of its end are JSON. `more`:
        fields beside the choice.
        """
        usage = running_usage(self._prompt_tokens, self._output_tokens) if self._options.running_usage else ""
        beside = f",{compact(more)[1:-1]}" if more else ""
        choice = f'{{"index":{index},{said},"logprobs":{logprobs},"finish_reason":{reason}}}'
        return f'{self._head}"choices":[{choice}]{usage}{beside}}}\n\n'.encode()


def unenforced_of(finished: api.Finished | api.GenerateResponse) -> dict[str, Any]:
    """Return the field that names what of a schema was not enforced; no field where all of it was."""
    return unenforced_fields(map(unenforced_from_wire, finished.unenforced))


def event_id(received: list[int], index: int, tokens: int) -> bytes:
    """Return the id of a chunk: the output tokens of each choice that a client has with it. `received` has those before
    it, and gets the choice's `tokens`.
    """
    received += [0] * (index + 1 - len(received))
    received[index] = tokens
    return f"id: {','.join(map(str, received))}\n".encode()


def queue_place(queued: api.Queued) -> bytes:
    """Return a comment, which clients of server-sent events skip; it keeps the connection alive. Without an empty line:
    OpenAI's SDK takes one for an event where events have ids, and fails on it.
    """
    eta = f" eta_s={duration_from_wire(queued.eta):.1f}" if queued.HasField("eta") else ""
    return f": queue position={queued.position}{eta}\n".encode()


def receipt_object(receipt: types.Receipt) -> dict[str, Any]:
    """Return a receipt with times in seconds."""
    return asdict(Receipt.from_proto(receipt))


def _said(text: str, reasoning: str, calls: Sequence[types.ToolCallDelta]) -> str:
    """Return what a delta adds, as JSON. Written by hand, because most tokens come through here."""
    parts = []
    if reasoning:
        shown = encode_basestring(reasoning)
        # vLLM renamed it; clients read one or the other.
        parts.append(f'"reasoning":{shown},"reasoning_content":{shown}')
    if text or not (reasoning or calls):
        parts.append(f'"content":{encode_basestring(text)}')
    if calls:
        parts.append(f'"tool_calls":[{",".join(map(_tool_call, calls))}]')
    return f'"delta":{{{",".join(parts)}}}'


def _tool_call(call: types.ToolCallDelta) -> str:
    begin = f'"id":{encode_basestring(call.id)},"type":"function",' if call.id else ""
    name = f'"name":{encode_basestring(call.name)},' if call.name else ""
    arguments = encode_basestring(call.arguments)
    return f'{{"index":{call.index},{begin}"function":{{{name}"arguments":{arguments}}}}}'
