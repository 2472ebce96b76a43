"""Order of events, and the virtual clock that they move."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cluster.clock import ManualClock

T = TypeVar("T")


class EventLoop:
    """Queue of events by time. Events of the same time run in the order in which they were added."""

    def __init__(self, clock: ManualClock) -> None:
        self.now = 0.0
        """Seconds. May differ from the clock's by the time that passed before."""
        self._clock = clock
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = itertools.count()

    def at(self, at: float, handle: Callable[[Any], None], argument: Any = None) -> None:
        """Call `handle(argument)` at a time."""
        heapq.heappush(self._events, (at, next(self._order), handle, argument))

    @property
    def next_at(self) -> float:
        """Time of the next event."""
        return self._events[0][0]

    def step(self) -> None:
        """Move the clock to the next event, and run it."""
        at, _, handle, argument = heapq.heappop(self._events)
        if at > self.now:
            self._clock.advance(at - self.now)
            self.now = at
        handle(argument)


def now(call: Coroutine[Any, Any, T]) -> T:
    """Run a call of the queue, whose server is in this process, so it never waits."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("a call of the queue in process waits")
