"""How much of a stream goes into one message."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from cluster.settings import MergingSettings

WINDOW_S = 0.5
"""Tokens are counted for so long before what follows adapts to them."""
NEVER = 1 << 30
"""More tokens than a stream has."""


class Pace:
    """Counts the tokens that a router process streams, and says how many of them should share a message."""

    def __init__(self, settings: MergingSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.at_most_s = settings.at_most_s
        """The longest that a token waits for others."""
        self.together = 1
        """Tokens of a stream that should share a message."""
        self._messages_per_s = settings.messages_per_s
        self._counted = 0
        self._since = clock()

    def wrote(self, tokens: int) -> None:
        """Count tokens that are sent now."""
        self._counted += tokens
        if (passed_s := self.clock() - self._since) >= WINDOW_S:
            self.together = max(1, math.ceil(self._counted / passed_s / self._messages_per_s))
            self._since += passed_s
            self._counted = 0


class StreamPace:
    """Says how long the output of one stream should collect. Its first token never waits."""

    __slots__ = ("_asked_s", "_begun", "_pace", "_wrote_at")

    def __init__(self, pace: Pace, asked_s: float | None) -> None:
        """`asked_s` is the interval that the client asks for; None leaves it to the router."""
        self._pace = pace
        self._asked_s = asked_s
        self._begun = False
        self._wrote_at = 0.0

    def wrote(self, tokens: int) -> None:
        """Learn that output is written now."""
        self._begun = True
        self._pace.wrote(tokens)
        if self._asked_s:
            self._wrote_at = self._pace.clock()

    def wait(self) -> tuple[float, int]:
        """Return the seconds for which new output should wait, unless a choice has so many tokens earlier."""
        if not self._begun:
            return 0.0, 1
        if self._asked_s is None:
            return self._pace.at_most_s, self._pace.together
        if not self._asked_s:
            return 0.0, 1
        return self._wrote_at + self._asked_s - self._pace.clock(), NEVER
