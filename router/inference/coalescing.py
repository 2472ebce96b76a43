"""Coalescing: how much output of a stream goes into one message."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from cluster.settings import MergingSettings

NEVER = 1 << 30
"""More tokens than a stream has."""


class Collecting(NamedTuple):
    """How much output comes together before it is written."""

    tokens: int
    """Enough tokens of one choice for a message; 1 writes output as it comes."""
    seconds: float = 0.0
    """Longest wait of output, in seconds."""
    from_now: bool = False
    """Whether the seconds count from now, and not from the first output that waits."""


AT_ONCE = Collecting(1)


class Coalescing:
    """Number of streams of a router process, and how many tokens of one stream should share a message."""

    def __init__(self, settings: MergingSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.at_most_s = settings.at_most_s
        """The longest that a token waits for others, in seconds."""
        self.streams = 0
        """Streams that have had their first token and have not ended."""
        self.together = 1
        """Tokens of a stream that should share a message, as far as their time allows it."""
        self._many = settings.streams

    def count(self, more: int) -> None:
        """Add `more` to the number of streams: 1 for a first token, -1 for an end."""
        self.streams += more
        self.together = max(1, 4 * self.streams // self._many - 2)


class StreamCoalescing:
    """Coalescing of one stream. Its first token never waits. `Generation` does the same for further choices."""

    __slots__ = ("_asked_s", "_coalescing", "_wrote_at")

    def __init__(self, coalescing: Coalescing, asked_s: float | None) -> None:
        """`asked_s` is the interval that the client asks for, in seconds; None leaves it to the router."""
        self._coalescing = coalescing
        self._asked_s = asked_s
        self._wrote_at = 0.0

    def wrote(self, tokens: int) -> Collecting:
        """Note a write of so many tokens now. Return how the tokens after them should collect."""
        coalescing = self._coalescing
        now = coalescing.clock()
        if not self._wrote_at:
            coalescing.count(1)
        passed_s, self._wrote_at = now - self._wrote_at, now
        if self._asked_s is not None:
            return Collecting(NEVER, self._asked_s, from_now=True) if self._asked_s else AT_ONCE
        together = coalescing.together
        if together == 1 or passed_s <= 0 or not tokens:
            return AT_ONCE
        # The message should leave with the step that brings its last token: a timer would split the output of a step.
        fit = 1 + int(coalescing.at_most_s * tokens / passed_s)
        return Collecting(min(fit, together), coalescing.at_most_s) if fit > 1 else AT_ONCE

    def close(self) -> None:
        """Note the end of the stream. May be called twice."""
        if self._wrote_at:
            self._coalescing.count(-1)
            self._wrote_at = 0.0
