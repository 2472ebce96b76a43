"""How often a stream is written to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cluster.settings import MergingSettings


class Pace:
    """Spreads the messages that a router process should write over its streams."""

    def __init__(self, settings: MergingSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._settings = settings
        self._streams = 0

    @contextmanager
    def stream(self, asked_s: float | None) -> Iterator[StreamPace]:
        """Follow one stream; `asked_s` is the interval that its client asks for."""
        pace = StreamPace(self, asked_s)
        try:
            yield pace
        finally:
            if pace.begun:
                self._streams -= 1

    def begin(self) -> None:
        """Count a stream that has its first output."""
        self._streams += 1

    @property
    def interval_s(self) -> float:
        """The time from one message of a stream to its next one, where its client leaves it open."""
        return min(self._settings.at_most_s, self._streams / self._settings.messages_per_s)


class StreamPace:
    """Says how long the output of one stream should collect."""

    __slots__ = ("_asked_s", "_pace", "_wrote_at", "begun")

    def __init__(self, pace: Pace, asked_s: float | None) -> None:
        self.begun = False
        """Whether it had output."""
        self._pace = pace
        self._asked_s = asked_s
        self._wrote_at = 0.0

    def wrote(self) -> None:
        """Learn that output is written now."""
        self._wrote_at = self._pace.clock()
        if not self.begun:
            self.begun = True
            self._pace.begin()

    def rest_s(self) -> float:
        """Return for how long new output should wait; not positive: it should not."""
        if not self.begun:
            return 0.0
        interval_s = self._pace.interval_s if self._asked_s is None else self._asked_s
        return self._wrote_at + interval_s - self._pace.clock()
