"""Events of a generation as chunks of OpenAI's streams. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from penstock.batch.output import chat_logprobs, text_logprobs, usage_object
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.values.results import Usage
from penstock.wire import duration_from_wire, logprobs_from_wire
from router.inference.servicer import raise_if_stopped

DONE = b"data: [DONE]\n\n"
_REASONS = {types.FINISH_REASON_STOP: "stop", types.FINISH_REASON_LENGTH: "length"}


class Chunks:
    """Chunks of one stream. Every chunk has the same id, creation time and model."""

    def __init__(self, model: str, created: int, *, chat: bool, usage: bool, running_usage: bool) -> None:
        """Begin.

        Args:
            model: as the client wrote it.
            created: seconds since 1970.
            chat: whether the stream is that of a chat.
            usage: whether a last chunk has the usage.
            running_usage: whether every chunk has the usage so far.
        """
        self.request_id = ""
        """The cluster's id of the request; empty until the first event."""
        self._model, self._created, self._chat = model, created, chat
        self._usage, self._running_usage = usage, running_usage
        self._greeted: set[int] = set()
        """Choices whose role was sent."""
        self._prompt_tokens = 0
        self._output_tokens = 0

    def of(self, event: api.StreamGenerateResponse) -> Iterator[bytes]:
        """Yield the lines of an event.

        Raises:
            DeadlineError, CancelledError: a choice was stopped from outside, so the answer is not complete.
        """
        match event.WhichOneof("event"):
            case "queued":
                self.request_id = event.queued.request_id
                eta = (
                    f" eta_s={event.queued.eta.ToTimedelta().total_seconds():.1f}"
                    if event.queued.HasField("eta")
                    else ""
                )
                yield f": queue position={event.queued.position}{eta}\n\n".encode()
            case "started":
                self.request_id = event.started.request_id
                self._prompt_tokens = event.started.prompt_tokens
                yield from self._greeting(event.started.choice_index)
            case "delta":
                yield from self._delta(event.delta)
            case "finished":
                yield from self._end(event.finished)

    def _greeting(self, index: int) -> Iterator[bytes]:
        if self._chat and index not in self._greeted:
            self._greeted.add(index)
            yield self._chunk([self._choice(index, delta={"role": "assistant", "content": ""})])

    def _delta(self, delta: api.Delta) -> Iterator[bytes]:
        yield from self._greeting(delta.choice_index)
        self._output_tokens += len(delta.token_ids)
        if not delta.text and not delta.logprobs:
            return
        positions = tuple(map(logprobs_from_wire, delta.logprobs))
        if self._chat:
            choice = self._choice(delta.choice_index, delta={"content": delta.text}, logprobs=chat_logprobs(positions))
        else:
            choice = self._choice(delta.choice_index, text=delta.text, logprobs=text_logprobs(positions))
        yield self._chunk([choice])

    def _end(self, finished: api.Finished) -> Iterator[bytes]:
        raise_if_stopped({choice.finish_reason for choice in finished.choices})
        self.request_id = self.request_id or finished.request_id
        for choice in finished.choices:
            yield from self._greeting(choice.index)
            said: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
            yield self._chunk([self._choice(choice.index, **said, reason=_REASONS[choice.finish_reason])])
        if self._usage:
            yield self._line({"choices": [], "usage": usage_object(Usage.from_proto(finished.usage))})
        yield DONE

    def _choice(self, index: int, *, logprobs: Any = None, reason: str | None = None, **said: Any) -> dict[str, Any]:
        return {"index": index, **said, "logprobs": logprobs, "finish_reason": reason}

    def _chunk(self, choices: list[dict[str, Any]]) -> bytes:
        fields: dict[str, Any] = {"choices": choices}
        if self._running_usage:
            prompt, output = self._prompt_tokens, self._output_tokens
            fields["usage"] = {
                "prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output,
            }  # fmt: skip
        return self._line(fields)

    def _line(self, fields: dict[str, Any]) -> bytes:
        whole = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{self.request_id}",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": self._created,
            "model": self._model,
            **fields,
        }
        return f"data: {json.dumps(whole, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def _place(queued: api.Queued) -> bytes:
    """Return a comment, which clients of server-sent events skip; it keeps the connection alive."""
    eta = f" eta_s={duration_from_wire(queued.eta):.1f}" if queued.HasField("eta") else ""
    return f": queue position={queued.position}{eta}\n\n".encode()
