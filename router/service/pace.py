"""How much of a stream goes into one message."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from cluster.settings import MergingSettings

WINDOW_S = 0.5
"""Tokens are counted for so long before what follows adapts to them."""
REMEMBERED_S = 4.0
"""The rate is taken over so long: neither a pause between bursts nor one burst changes much."""
STEPS = 8
"""A rate that is a further 1/8 too high lets one token more share a message."""
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


class Pace:
    """Counts the tokens that a router process streams, and says how many of them should share a message."""

    def __init__(self, settings: MergingSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.at_most_s = settings.at_most_s
        """The longest that a token waits for others."""
        self.together = 1
        """Tokens of a stream that should share a message, as far as their time allows it."""
        self._tokens_per_s = settings.tokens_per_s
        self._counted = 0
        self._since = clock()
        self._windows: deque[tuple[float, int]] = deque()
        """Begin and tokens of the last ones."""

    def wrote(self, tokens: int, now: float) -> None:
        """Count tokens that are sent now."""
        self._counted += tokens
        if now - self._since < WINDOW_S:
            return
        self._windows.append((self._since, self._counted))
        self._since, self._counted = now, 0
        while len(self._windows) > 1 and self._windows[0][0] < now - REMEMBERED_S - WINDOW_S:
            self._windows.popleft()
        rate = sum(tokens for _, tokens in self._windows) / (now - self._windows[0][0])
        self.together = 1 + max(0, math.ceil(STEPS * (rate / self._tokens_per_s - 1)))


class StreamPace:
    """Says how the output of one stream should collect. Its first token never waits."""

    __slots__ = ("_asked_s", "_pace", "_wrote_at")

    def __init__(self, pace: Pace, asked_s: float | None) -> None:
        """`asked_s` is the interval that the client asks for; None leaves it to the router."""
        self._pace = pace
        self._asked_s = asked_s
        self._wrote_at = 0.0

    def wrote(self, tokens: int) -> Collecting:
        """Learn that so many tokens are written now; say how those after them should collect."""
        pace = self._pace
        now = pace.clock()
        passed_s, self._wrote_at = now - self._wrote_at, now
        pace.wrote(tokens, now)
        if self._asked_s is not None:
            return Collecting(NEVER, self._asked_s, from_now=True) if self._asked_s else AT_ONCE
        if pace.together == 1 or passed_s <= 0 or not tokens:
            return AT_ONCE
        # The message should leave with the step that brings its last token: a timer would split what steps bring.
        fit = 1 + int(pace.at_most_s * tokens / passed_s)
        return Collecting(min(fit, pace.together), pace.at_most_s) if fit > 1 else AT_ONCE
