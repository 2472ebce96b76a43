"""Waiting for a condition instead of for the clock."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

from tests.support.speed import measured, patience

_TURNS = 5


class TimedOutError(AssertionError):
    """A condition that did not hold in time. Only such failures are run again; see tests/again.py."""


class Deadline:
    """End of a wait of so many seconds, later on a slow machine."""

    def __init__(self, seconds: float, factor: float | None = None, slowness: Callable[[], float] = measured) -> None:
        self._seconds = seconds
        self._factor = patience() if factor is None else factor
        self._slowness = slowness
        self._began = time.monotonic()

    def passed(self) -> bool:
        """Return whether the time is over. Measures again before it says so: the load may be newer than the session."""
        if self._waited() <= self._factor * self._seconds:
            return False
        self._factor = max(self._factor, self._slowness())
        return self._waited() > self._factor * self._seconds

    def error(self, condition: Callable[[], object]) -> TimedOutError:
        """Return the error of a wait for this condition."""
        source = inspect.getsource(condition).strip()
        return TimedOutError(f"the condition did not hold within {self._waited():.1f} s: {source}")

    def _waited(self) -> float:
        return time.monotonic() - self._began


async def until(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 20.0) -> None:
    """Return as soon as the condition holds. Raises TimedOutError when it does not within the seconds that a machine
    as fast as the one of `tests.support.speed` would take.
    """
    deadline = Deadline(seconds)
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        if deadline.passed():
            raise deadline.error(condition)
        await asyncio.sleep(0.005)


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has put its things away. The end of a test's loop does not wait so: it cancels
    once more, into the clean-up, and a process that was starting is left behind.
    """
    task.cancel()
    await asyncio.wait([task])


async def settled_transports() -> None:
    """Let asyncio finish what it began: an accepted connection reaches its handler, and an aborted one closes its
    socket, some turns of the loop later. Nothing tells when.
    """
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def until_sync(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Return as soon as the condition holds, for tests without a loop of their own. Raises what `until` raises."""
    deadline = Deadline(seconds)
    while not condition():
        if deadline.passed():
            raise deadline.error(condition)
        time.sleep(0.05)
