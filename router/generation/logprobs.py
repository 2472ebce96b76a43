"""Log probabilities on their way to a client. Tokens get their texts, and the parts of a prompt leave together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.wire import LOGPROB_FLOOR

_ENTRY_BYTES = 100
"""A log probability in memory."""


def add_texts(positions: Iterable[types.PositionLogprobs], token_bytes: Mapping[int, bytes]) -> None:
    """Set the text of each token, in place."""
    for position in positions:
        chosen = position.chosen
        chosen.token_bytes = token_bytes[chosen.token_id]
        for token in position.top:
            token.token_bytes = token_bytes[token.token_id]


class PromptLogprobs:
    """Log probabilities of a prompt, which come in parts and leave together."""

    __slots__ = ("_entries", "_event", "_first_token", "_token_bytes")

    def __init__(self, first_token: int, token_bytes: Mapping[int, bytes] | None) -> None:
        """Begin without any.

        Args:
            first_token: id of the prompt's first token, which has no probability.
            token_bytes: texts of tokens, by id; None where they are not known.
        """
        self._first_token = first_token
        self._token_bytes = token_bytes
        self._event: api.StreamGenerateResponse | None = None
        """The event that they leave in; None without any. Messages can't move to another one, and a copy of so many
        costs time."""
        self._entries = 0

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return self._entries > 0

    @property
    def size(self) -> int:
        """Estimated bytes in memory."""
        return _ENTRY_BYTES * self._entries

    def add(self, part: pb.PromptLogprobs) -> None:
        """Take a part. The first one replaces what there is: a link that broke begins anew."""
        if not part.first or self._event is None:
            self._event, self._entries = api.StreamGenerateResponse(), 0
        if not part.first:
            self._entries = 1
            self._set(self._event.delta.prompt_logprobs.add().chosen, self._first_token, LOGPROB_FLOOR)
        found = self._event.delta.prompt_logprobs
        ids, values, width = part.token_ids, part.logprobs, part.width
        for row, rank in enumerate(part.ranks):
            at = row * width
            position = found.add(rank=rank)
            self._set(position.chosen, ids[at], values[at])
            for place in range(at + 1, at + width):
                self._set(position.top.add(), ids[place], values[place])
        self._entries += len(ids)

    def take(self, output: api.StreamGenerateResponse) -> api.StreamGenerateResponse:
        """Return an event with all of them and some output, and keep none."""
        event, self._event, self._entries = self._event, None, 0
        if event is None:
            return output
        event.MergeFrom(output)
        return event

    def look(self, output: api.StreamGenerateResponse) -> api.StreamGenerateResponse:
        """Return what `take` would, and keep all."""
        event = api.StreamGenerateResponse()
        if self._event is not None:
            event.CopyFrom(self._event)
        event.MergeFrom(output)
        return event

    def _set(self, token: types.TokenLogprob, token_id: int, logprob: float) -> None:
        token.token_id = token_id
        token.logprob = logprob
        if self._token_bytes is not None:
            token.token_bytes = self._token_bytes[token_id]
