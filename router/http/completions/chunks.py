"""Events of generations as chunks of one stream of /v1/completions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any

from penstock.batch.logprobs import TextLogprobs
from penstock.batch.output import usage_object
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.values.results import Usage
from penstock.wire import finish_reason_from_wire, logprobs_from_wire
from router.call_context import text_event
from router.http.chunks import DONE, event_id, queue_place, unenforced_of
from router.http.compact import NULL, compact, numbers, running_usage
from router.http.completions.bodies import Echo, TextOptions, receipts_object, sum_of
from router.http.errors import HttpError
from router.inference.servicer import raise_if_stopped


class TextChunks:
    """Chunks of one stream. Every chunk has the same id, creation time and model, whichever prompt it is of."""

    def __init__(self, options: TextOptions, head: Mapping[str, Any]) -> None:
        """`head` has the fields that all chunks share beside their id."""
        self.options = options
        self.request_id = ""
        """The cluster's id of the first request; empty until the first event."""
        self._fields = head
        self._head = ""
        """Beginning of every chunk."""
        self._open = options.prompts
        """Prompts whose choices have not all ended."""
        self._usages: list[Usage] = []
        self._receipts: list[types.Receipt] = []
        self.prompt_tokens = 0
        self.output_tokens = 0

    def part(self, prompt: int, echo: str) -> TextPart:
        """Return the encoder of one prompt's events. `echo`: the prompt's text; empty where it is not echoed."""
        return TextPart(self, prompt * self.options.n, echo)

    def failed(self, error: HttpError) -> bytes:
        """Return the last line of a stream that fails; OpenAI's clients raise its error. No [DONE] follows."""
        return error.retry_line() + f"data: {compact(error.in_stream())}\n\n".encode()

    def opened(self, request_id: str) -> None:
        """Learn the cluster's id of a request; the first one names all chunks."""
        if self._head:
            return
        self.request_id = request_id
        whole = {"id": f"cmpl-{request_id}", "object": "text_completion", **self._fields}
        self._head = f"data: {compact(whole)[:-1]},"

    def chunk(
        self,
        index: int,
        text: str,
        *,
        ids: Iterable[int] | None = None,
        logprobs: str = NULL,
        reason: str = NULL,
        beside: Mapping[str, Any] = {},
    ) -> bytes:
        """Return a chunk of one choice.

        Args:
            index: number of the choice.
            text: its new text.
            ids: its new tokens; None where the client does not ask for them.
            logprobs: their log probabilities, as JSON.
            reason: the reason of its end, as JSON.
            beside: fields beside the choice.
        """
        usage = running_usage(self.prompt_tokens, self.output_tokens) if self.options.shown.running_usage else ""
        others = f",{compact(beside)[1:-1]}" if beside else ""
        tokens = "" if ids is None else f',"token_ids":{numbers(ids)}'
        said = f'"text":{encode_basestring(text)},"logprobs":{logprobs},"finish_reason":{reason}{tokens}'
        return f'{self._head}"choices":[{{"index":{index},{said}}}]{usage}{others}}}\n\n'.encode()

    def ended(self, finished: api.Finished) -> bytes:
        """Return what follows the last chunk of a prompt: the end of the stream after the last prompt."""
        self._usages.append(Usage.from_proto(finished.usage))
        self._receipts.append(finished.receipt)
        self._open -= 1
        if self._open:
            return b""
        if not self.options.shown.usage:
            return DONE
        usage = usage_object(sum_of(self._usages))
        if self.options.shown.receipt:
            usage |= receipts_object(self._receipts)
        return f'{self._head}"choices":[],"usage":{compact(usage)}}}\n\n'.encode() + DONE


class TextPart:
    """Encoder of one prompt's events."""

    def __init__(self, whole: TextChunks, first_index: int, echo: str) -> None:
        """`first_index`: number of the prompt's first choice in the answer."""
        self._whole = whole
        self._options = whole.options
        self._first = first_index
        self._echo: Echo | None = Echo(echo)
        """None while the log probabilities that belong to it are not known."""
        if self._options.echo and self._options.logprobs:
            self._echo, self._text = None, echo
        self._echoed = 0
        """Choices whose prompt was echoed, a bit each."""
        self._held: list[api.Delta] = []
        """Output of other choices that waits for the first one, which alone brings the prompt's log probabilities."""
        self._lists: dict[int, TextLogprobs] = {}
        self._received = list(self._options.shown.received or (0,))
        """Output tokens of each choice that the client has with the next chunk."""
        self._event_ids = self._options.shown.event_ids
        self._ids = self._options.shown.token_ids
        self._plain = not (self._options.logprobs or self._options.echo)

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
                if not event.started.choice_index:
                    self._whole.prompt_tokens += event.started.prompt_tokens
                return self._echo_of(event.started.choice_index)
            case "finished":
                return self._end(event.finished)
            case _:
                return b""

    def text(self, index: int, offset: int, token_ids: Sequence[int], text: str) -> bytes:
        """Return the lines of output that is only text. Nearly every token comes through here."""
        if not self._plain:
            return self._delta(text_event(index, offset, token_ids, text).delta)
        whole = self._whole
        whole.output_tokens += len(token_ids)
        if not (text or (self._ids and token_ids)):
            return b""
        chunk = whole.chunk(self._first + index, text, ids=token_ids if self._ids else None)
        return self._id_of(index, offset + len(token_ids)) + chunk if self._event_ids else chunk

    def opened(self, request_id: str) -> None:
        """Learn the cluster's id of the request, before its first event."""
        self._whole.opened(request_id)

    def failed(self, error: HttpError) -> bytes:
        """Return the last line of a stream that fails."""
        return self._whole.failed(error)

    def _delta(self, delta: api.Delta) -> bytes:
        if self._plain:
            return self.text(delta.choice_index, delta.offset, delta.token_ids, delta.text)
        self._whole.output_tokens += len(delta.token_ids)
        if self._echo is None:
            if not delta.prompt_logprobs:
                self._held.append(delta)
                return b""
            self._echo = Echo(self._text, tuple(map(logprobs_from_wire, delta.prompt_logprobs)))
        held, self._held = self._held, []
        return b"".join(map(self._output, [delta, *held]))

    def _output(self, delta: api.Delta) -> bytes:
        index = delta.choice_index
        begin = self._echo_of(index)
        if self._options.echo_only or not (delta.text or delta.logprobs or (self._ids and delta.token_ids)):
            return begin
        logprobs = NULL
        if delta.logprobs:
            logprobs = compact(self._lists_of(index).lists(map(logprobs_from_wire, delta.logprobs)))
        ids = delta.token_ids if self._ids else None
        chunk = self._whole.chunk(self._first + index, delta.text, ids=ids, logprobs=logprobs)
        return begin + self._id_of(index, delta.offset + len(delta.token_ids)) + chunk

    def _id_of(self, index: int, tokens: int) -> bytes:
        """Return the id of the next chunk, with which a client can come back; empty where it can't."""
        return event_id(self._received, index, tokens) if self._event_ids else b""

    def _echo_of(self, index: int) -> bytes:
        if not self._options.echo or self._echo is None or self._echoed >> index & 1:
            return b""
        self._echoed |= 1 << index
        logprobs = NULL
        if self._echo.positions:
            logprobs = compact(self._lists_of(index).lists(self._echo.positions, prompt=True))
        return self._whole.chunk(self._first + index, self._echo.text, logprobs=logprobs)

    def _lists_of(self, index: int) -> TextLogprobs:
        if index not in self._lists:
            leading = self._echo.leading if self._echo is not None else 0
            self._lists[index] = TextLogprobs(as_ids=self._options.shown.tokens_as_ids, leading=leading)
        return self._lists[index]

    def _end(self, finished: api.Finished) -> bytes:
        raise_if_stopped({choice.finish_reason for choice in finished.choices})
        lines, beside = [], unenforced_of(finished)
        for choice in finished.choices:
            lines.append(self._echo_of(choice.index))
            reason = "length" if self._options.echo_only else finish_reason_from_wire(choice.finish_reason).value
            lines.append(self._whole.chunk(self._first + choice.index, "", reason=f'"{reason}"', beside=beside))
        return b"".join([*lines, self._whole.ended(finished)])
