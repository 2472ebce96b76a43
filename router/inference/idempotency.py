"""Results of requests that came with an idempotency key: collected as they stream, kept in the queue's store."""

from __future__ import annotations

from collections.abc import Iterator

import msgpack

from cluster.errors import InvalidRequestError, ShuttingDownError, TakenOverError
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.dispatch.pool import Pool
from router.generation.generation import Generation
from router.generation.output import NO_END
from router.inference.collect import Collector

_COMPLETE = {types.FINISH_REASON_STOP, types.FINISH_REASON_LENGTH}

Ends = dict[int, list[tuple[int, int]]]
"""Choice to the end of each delta: tokens, characters."""


class IdempotentResult:
    """Collects what one generation delivers, and settles its key at the end."""

    def __init__(self, generation: Generation, pool: Pool, tenant: str, key: str) -> None:
        self.generation = generation
        self._pool = pool
        self._tenant = tenant
        self._key = key
        self._collector = Collector()
        self._ends: Ends = {}
        self._tokens: dict[int, int] = {}
        self._characters: dict[int, int] = {}
        self._whole = True
        """Whether the output is known from its beginning."""

    def add(self, event: api.StreamGenerateResponse) -> None:
        """Take an event that the client gets."""
        if event.HasField("delta"):
            delta, index = event.delta, event.delta.choice_index
            if index not in self._tokens and delta.offset:
                self._begin_with(self.generation.choices[index].output.prefix)
            self._tokens[index] = self._tokens.get(index, 0) + len(delta.token_ids)
            self._characters[index] = self._characters.get(index, 0) + len(delta.text)
            self._ends.setdefault(index, []).append((self._tokens[index], self._characters[index]))
        elif event.HasField("finished"):
            for choice in self.generation.choices:
                if choice.tokens and choice.index not in self._tokens:
                    # Its client had all of it before this call.
                    self._begin_with(choice.output.prefix)
        self._collector.add(event)

    def _begin_with(self, prefix: api.Delta | None) -> None:
        """Take the output that the client had before this call."""
        if prefix is None:
            self._whole = False
        else:
            self.add(api.StreamGenerateResponse(delta=prefix))

    async def settle(self) -> None:
        """Keep a complete result; let the key be used again after anything else. Not for this call to say where another
        one took the request over, or may still do so.
        """
        if isinstance(self.generation.error, TakenOverError | ShuttingDownError) or self.generation.left:
            return
        ends = self._collector.finished.choices
        ended = len(ends) == len(self.generation.choices) and all(end.finish_reason in _COMPLETE for end in ends)
        complete = self._whole and self.generation.finished and ended
        result = pack_result(self._collector.response(), self._ends) if complete else b""
        await self._pool.finish_key(self._tenant, self._key, self.generation.request_id, result)


def pack_result(response: api.GenerateResponse, ends: Ends) -> bytes:
    """Write a result with the ends of its deltas, so that a client may ask for the rest of it."""
    return bytes(msgpack.packb((response.SerializeToString(), sorted(ends.items()))))


def read_result(data: bytes) -> tuple[api.GenerateResponse, Ends]:
    """Read a result."""
    response, ends = msgpack.unpackb(data)
    return api.GenerateResponse.FromString(response), {index: [tuple(end) for end in list_] for index, list_ in ends}


def replay(data: bytes, received: tuple[int, ...]) -> Iterator[api.StreamGenerateResponse]:
    """Turn a kept result into the rest of a stream.

    Raises:
        InvalidRequestError: `received` is not the end of a delta.
    """
    response, ends = read_result(data)
    rest: list[tuple[api.Choice, int, int]] = []
    for choice in response.choices:
        have = received[choice.index] if choice.index < len(received) else 0
        # Text without tokens was held back to the end, and travels with it: who has that does not come back.
        known = {**dict(reversed(ends.get(choice.index, ()))), 0: 0}
        if have not in known:
            # Before anything is sent: who is refused has got nothing.
            raise InvalidRequestError.of("resume.received_tokens", NO_END.format(have))
        rest.append((choice, have, known[have]))
    for choice, have, characters in rest:
        if have < len(choice.token_ids) or characters < len(choice.text):
            yield api.StreamGenerateResponse(
                delta=api.Delta(
                    choice_index=choice.index,
                    text=choice.text[characters:],
                    token_ids=choice.token_ids[have:],
                    logprobs=choice.logprobs[have:],
                    offset=have,
                )
            )
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
        )
    )
