"""Output of a choice that its client has not been sent yet."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.call_context import text_event
from router.generation.parsed import add_to, join_calls

TextDelta = tuple[int, Sequence[int], str]
"""Output that is only text: offset, token ids, text."""

_TOKEN_BYTES = 40
"""An int and its place in a list."""
_TEXT_BYTES = 64
"""A short str and its place in a list."""
_CALL_TEXTS = 3
"""Number of such texts that a piece of a tool call counts as."""


def parsed_event(
    choice_index: int, offset: int, token_ids: Sequence[int], parsed: pb.DeltaParsed
) -> api.StreamGenerateResponse:
    """Write a delta of parsed output; `offset` counts the choice's output tokens before it."""
    event = text_event(choice_index, offset, token_ids, "")
    add_to(event.delta, parsed)
    return event


class Unread:
    """Deltas that merge until the client takes them."""

    __slots__ = ("_calls", "_ids", "_logprobs", "_reasoning", "_texts")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._texts: list[str] = []
        # Most streams have none of these, and an empty list takes as much as a short one.
        self._logprobs: list[types.PositionLogprobs] | None = None
        self._reasoning: list[str] | None = None
        self._calls: list[types.ToolCallDelta] | None = None

    def __bool__(self) -> bool:
        return bool(self._ids or self._texts or self._reasoning or self._calls)

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return len(self._ids)

    @property
    def size(self) -> int:
        """Estimate its bytes in memory: of log probabilities the newest stands for all."""
        each = 4 * self._logprobs[-1].ByteSize() if self._logprobs else 0
        texts = len(self._texts) + len(self._reasoning or ()) + _CALL_TEXTS * len(self._calls or ())
        return _TOKEN_BYTES * len(self._ids) + _TEXT_BYTES * texts + each * len(self._logprobs or ())

    def add(
        self,
        token_ids: Sequence[int],
        text: str,
        logprobs: Sequence[types.PositionLogprobs],
        parsed: pb.DeltaParsed | None = None,
    ) -> int:
        """Append a delta; returns how many tokens there are. `parsed` takes the place of the text."""
        if parsed is not None:
            text = parsed.text
            if parsed.reasoning:
                self._reasoning = self._reasoning or []
                self._reasoning.append(parsed.reasoning)
            if parsed.tool_calls:
                self._calls = self._calls or []
                self._calls.extend(parsed.tool_calls)
        self._ids.extend(token_ids)
        if text:
            self._texts.append(text)
        if logprobs:
            self._logprobs = self._logprobs or []
            self._logprobs.extend(logprobs)
        return len(self._ids)

    def take_text(self, tokens: int) -> TextDelta | None:
        """Return everything where it is only text; otherwise return None and change nothing."""
        return None if self._logprobs or self._reasoning or self._calls else self._take_text(tokens)

    def _take_text(self, tokens: int) -> TextDelta:
        ids, self._ids = self._ids, []
        texts, self._texts = self._texts, []
        return tokens - len(ids), ids, texts[0] if len(texts) == 1 else "".join(texts)

    def take(self, choice_index: int, tokens: int) -> api.StreamGenerateResponse:
        """Return everything as one event; `tokens` counts the choice's output with it."""
        event = text_event(choice_index, *self._take_text(tokens))
        if self._logprobs:
            event.delta.logprobs.extend(self._logprobs)
            self._logprobs = None
        if self._reasoning:
            event.delta.reasoning = "".join(self._reasoning)
            self._reasoning = None
        if self._calls:
            event.delta.tool_calls.extend(join_calls(self._calls))
            self._calls = None
        return event


class Dropped(Unread):
    """Output that is thrown away: the client hears that it lost it."""

    __slots__ = ()

    def add(
        self,
        token_ids: Sequence[int],
        text: str,
        logprobs: Sequence[types.PositionLogprobs],
        parsed: pb.DeltaParsed | None = None,
    ) -> int:
        """Drop a delta."""
        return 0
