"""Order of events, and the virtual clock that they move."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T")


class EventLoop:
    """Queue of events by time, and the clock that they move. Events of the same time run in the order of `at`."""

    def __init__(self) -> None:
        self._wall_ms = 1_000_000.0
        self._monotonic = 0.0
        self.now = 0.0
        """Seconds. May differ from the clock's by the time that passed before."""
        self.rung = False
        """Whether somebody is to look after the event that runs."""
        self.stopped = False
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = itertools.count()

    def wall_ms(self) -> int:
        """Return the clock's milliseconds."""
        return int(self._wall_ms)

    def monotonic(self) -> float:
        """Return the clock's seconds."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move the clock, before the first event."""
        self._wall_ms += seconds * 1000
        self._monotonic += seconds

    def at(self, at: float, handle: Callable[[Any], None], argument: Any = None) -> None:
        """Call `handle(argument)` at a time."""
        heappush(self._events, (at, next(self._order), handle, argument))

    @property
    def next_at(self) -> float:
        """Time of the next event."""
        return self._events[0][0]

    def run(self, look: Callable[[], None], *, once: bool = False) -> None:
        """Run events until it is stopped, or the next one. Call `look` after one that rang."""
        events = self._events
        while not self.stopped or once:
            at, _, handle, argument = heappop(events)
            passed = at - self.now
            if passed > 0.0:
                # As `advance` does, which would be one more call per event.
                self._wall_ms += passed * 1000
                self._monotonic += passed
                self.now = at
            handle(argument)
            if self.rung:
                self.rung = False
                look()
            if once:
                return


def now(call: Coroutine[Any, Any, T]) -> T:
    """Run a call of the queue, whose server is in this process, so it never waits."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("a call of the queue in process waits")
