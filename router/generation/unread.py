"""Output of a choice that its client has not been sent yet."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types

_TOKEN_BYTES = 40
"""An int and its place in a list."""
_TEXT_BYTES = 64
"""A short str and its place in a list."""


def delta_event(choice_index: int, offset: int, token_ids: Sequence[int], text: str) -> api.StreamGenerateResponse:
    """Write a delta without log probabilities; `offset` counts the choice's output tokens before it."""
    event = api.StreamGenerateResponse()
    # Filled in place: a finished delta given to the constructor would be copied.
    delta = event.delta
    if choice_index:
        delta.choice_index = choice_index
    delta.text = text
    delta.token_ids.extend(token_ids)
    delta.offset = offset
    return event


class Unread:
    """Deltas that merge until the client takes them."""

    __slots__ = ("_ids", "_logprobs", "_texts")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[types.PositionLogprobs] = []

    def __bool__(self) -> bool:
        return bool(self._ids or self._texts)

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return len(self._ids)

    @property
    def size(self) -> int:
        """Estimate its bytes in memory: of log probabilities the newest stands for all."""
        each = 4 * self._logprobs[-1].ByteSize() if self._logprobs else 0
        return _TOKEN_BYTES * len(self._ids) + _TEXT_BYTES * len(self._texts) + each * len(self._logprobs)

    def add(self, token_ids: Sequence[int], text: str, logprobs: Sequence[object]) -> None:
        """Append a delta."""
        self._ids.extend(token_ids)
        if text:
            self._texts.append(text)
        if logprobs:
            self._logprobs.extend(logprobs)  # type: ignore[arg-type]

    def take(self, choice_index: int, tokens: int) -> api.StreamGenerateResponse:
        """Return everything as one event; `tokens` counts the choice's output with it."""
        ids, self._ids = self._ids, []
        texts, self._texts = self._texts, []
        event = delta_event(choice_index, tokens - len(ids), ids, texts[0] if len(texts) == 1 else "".join(texts))
        if self._logprobs:
            event.delta.logprobs.extend(self._logprobs)
            self._logprobs = []
        return event


class Dropped(Unread):
    """Output that is thrown away: the client hears that it lost it."""

    __slots__ = ()

    def add(self, token_ids: Sequence[int], text: str, logprobs: Sequence[object]) -> None:
        """Drop a delta."""
