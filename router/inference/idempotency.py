"""Results of requests with an idempotency key: collected while they stream, stored with the queue, and replayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy

import msgpack

from cluster.errors import InvalidRequestError
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.generation.generation import Generation
from router.generation.output import NO_END
from router.inference.collect import Collector

_COMPLETE = {types.FINISH_REASON_STOP, types.FINISH_REASON_LENGTH, types.FINISH_REASON_TOOL_CALLS}

End = tuple[int, int] | tuple[int, int, int, tuple[int, ...]]
"""End of a delta: tokens and characters from the beginning of the output. Where it has reasoning or tool calls, also
characters of reasoning, and of the arguments of each call.
"""
Ends = dict[int, list[End]]
"""Choice to the ends of its deltas."""


class IdempotentResult:
    """Output of one generation, collected for its key."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._collector = Collector()
        self._ends: Ends = {}
        self._tokens: dict[int, int] = {}
        self._characters: dict[int, int] = {}
        self._reasoning: dict[int, int] = {}
        self._arguments: dict[int, dict[int, int]] = {}
        self._whole = True
        """Whether the output is known from its beginning."""

    def add(self, event: api.StreamGenerateResponse) -> None:
        """Collect an event that the client gets."""
        if event.HasField("delta"):
            delta, index = event.delta, event.delta.choice_index
            if index not in self._tokens and delta.offset:
                self._begin_with(self._generation.choices[index].output.prefix)
            self._tokens[index] = self._tokens.get(index, 0) + len(delta.token_ids)
            self._characters[index] = self._characters.get(index, 0) + len(delta.text)
            self._ends.setdefault(index, []).append(self._end(delta))
        elif event.HasField("finished"):
            for choice in self._generation.choices:
                if choice.tokens and choice.index not in self._tokens:
                    # Its client had all of it before this call.
                    self._begin_with(choice.output.prefix)
        self._collector.add(event)

    def _end(self, delta: api.Delta) -> End:
        index = delta.choice_index
        if delta.reasoning:
            self._reasoning[index] = self._reasoning.get(index, 0) + len(delta.reasoning)
        for call in delta.tool_calls:
            arguments = self._arguments.setdefault(index, {})
            arguments[call.index] = arguments.get(call.index, 0) + len(call.arguments)
        end = self._tokens[index], self._characters[index]
        if index not in self._reasoning and index not in self._arguments:
            return end
        return *end, self._reasoning.get(index, 0), tuple(self._arguments.get(index, {}).values())

    def _begin_with(self, prefix: api.Delta | None) -> None:
        """Collect the output that the client had before this call."""
        if prefix is None:
            self._whole = False
        else:
            self.add(api.StreamGenerateResponse(delta=prefix))

    def ahead(self, events: Iterable[api.StreamGenerateResponse]) -> IdempotentResult:
        """Return the result as it will be with these events, which the client has not got."""
        found = deepcopy(self, {id(self._generation): self._generation})
        for event in events:
            found.add(event)
        return found

    def packed(self) -> bytes:
        """Return the result as it is stored; b"" unless all of the output is known and every choice ended well."""
        ends = self._collector.finished.choices
        ended = len(ends) == len(self._generation.choices) and all(end.finish_reason in _COMPLETE for end in ends)
        complete = self._whole and ended
        return pack_result(self._collector.response(), self._ends) if complete else b""


def pack_result(response: api.GenerateResponse, ends: Ends) -> bytes:
    """Return a result and the ends of its deltas as bytes. With the ends a client can ask for the rest of it."""
    return bytes(msgpack.packb((response.SerializeToString(), sorted(ends.items()))))


def read_result(data: bytes) -> tuple[api.GenerateResponse, Ends]:
    """Return the result and the ends of its deltas from the bytes of `pack_result`."""
    response, ends = msgpack.unpackb(data)
    return api.GenerateResponse.FromString(response), {index: [tuple(end) for end in list_] for index, list_ in ends}


def _behind(choice: api.Choice, have: int, end: tuple[int, int, tuple[int, ...]]) -> api.Delta | None:
    """Return the output of a choice behind its first `have` tokens, which end at these characters of text, reasoning
    and arguments; None where there is none.
    """
    characters, reasoning, arguments = end
    delta = api.Delta(
        choice_index=choice.index,
        text=choice.text[characters:],
        token_ids=choice.token_ids[have:],
        logprobs=choice.logprobs[have:],
        offset=have,
        reasoning=choice.reasoning[reasoning:],
    )
    for number, call in enumerate(choice.tool_calls):
        if number >= len(arguments):
            delta.tool_calls.add(index=number, id=call.id, name=call.name, arguments=call.arguments)
        elif rest := call.arguments[arguments[number] :]:
            delta.tool_calls.add(index=number, arguments=rest)
    return delta if delta.token_ids or delta.text or delta.reasoning or delta.tool_calls else None


def replay(data: bytes, received: tuple[int, ...]) -> Iterator[api.StreamGenerateResponse]:
    """Turn a stored result into the rest of a stream. `received` is the number of tokens per choice that a client has.

    Raises:
        InvalidRequestError: `received` is not the end of a delta.
    """
    response, ends = read_result(data)
    rest: list[api.Delta | None] = []
    for choice in response.choices:
        have = received[choice.index] if choice.index < len(received) else 0
        # Text without tokens was held back until the end, and is sent with it. A client that has it does not come back.
        known: dict[int, tuple[int, int, tuple[int, ...]]] = {
            end[0]: (end[1], end[2], tuple(end[3])) if len(end) == 4 else (end[1], 0, ())
            for end in reversed(ends.get(choice.index, ()))
        }
        known[0] = (0, 0, ())
        if have not in known:
            # Refuse before anything is sent.
            raise InvalidRequestError.of("resume.received_tokens", NO_END.format(have))
        delta = _behind(choice, have, known[have])
        if delta is not None and not have and not choice.index:
            # With the first delta, which a client that has tokens got.
            delta.prompt_logprobs.extend(response.prompt_logprobs)
        rest.append(delta)
    for delta in rest:
        if delta is not None:
            yield api.StreamGenerateResponse(delta=delta)
    yield api.StreamGenerateResponse(
        finished=api.Finished(
            request_id=response.request_id,
            choices=[
                api.ChoiceEnd(
                    index=choice.index,
                    finish_reason=choice.finish_reason,
                    stop_match=choice.stop_match,
                    output_tokens=len(choice.token_ids),
                )
                for choice in response.choices
            ],
            usage=response.usage,
            receipt=response.receipt,
            unenforced=response.unenforced,
        )
    )
