"""How much of a stream goes into one message."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from cluster.settings import MergingSettings

NEVER = 1 << 30
"""More tokens than a stream has."""


class Collecting(NamedTuple):
    """Says how much output should come together before it is written."""

    tokens: int
    """So many of a choice are enough; 1 writes what comes at once."""
    seconds: float = 0.0
    """Nothing waits longer."""
    from_now: bool = False
    """Whether the seconds count from now, and not from the first output that waits."""


AT_ONCE = Collecting(1)


class Coalescing:
    """Counts the streams of a router process, and says how many tokens of one should share a message."""

    def __init__(self, settings: MergingSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.at_most_s = settings.at_most_s
        """The longest that a token waits for others."""
        self.streams = 0
        """Those that have had their first token and have not ended."""
        self.together = 1
        """Tokens of a stream that should share a message, as far as their time allows it."""
        self._many = settings.streams

    def count(self, more: int) -> None:
        """Learn that so many streams more had their first token than ended."""
        self.streams += more
        self.together = max(1, 4 * self.streams // self._many - 2)


class StreamCoalescing:
    """Says how the output of one stream should collect. Its first token never waits; further choices': `Generation`."""

    __slots__ = ("_asked_s", "_pace", "_wrote_at")

    def __init__(self, pace: Coalescing, asked_s: float | None) -> None:
        """`asked_s` is the interval that the client asks for; None leaves it to the router."""
        self._pace = pace
        self._asked_s = asked_s
        self._wrote_at = 0.0

    def wrote(self, tokens: int) -> Collecting:
        """Learn that so many tokens are written now; say how those after them should collect."""
        pace = self._pace
        now = pace.clock()
        if not self._wrote_at:
            pace.count(1)
        passed_s, self._wrote_at = now - self._wrote_at, now
        if self._asked_s is not None:
            return Collecting(NEVER, self._asked_s, from_now=True) if self._asked_s else AT_ONCE
        together = pace.together
        if together == 1 or passed_s <= 0 or not tokens:
            return AT_ONCE
        # The message should leave with the step that brings its last token: a timer would split what steps bring.
        fit = 1 + int(pace.at_most_s * tokens / passed_s)
        return Collecting(min(fit, together), pace.at_most_s) if fit > 1 else AT_ONCE

    def close(self) -> None:
        """Learn that the stream has ended."""
        if self._wrote_at:
            self._pace.count(-1)
            self._wrote_at = 0.0
