"""Ownership of background tasks, helpers for cancellation, and stop signals."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import stat
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")

_MOST_LATE_S = 0.5
_LOOKS = 4
"""Parts of a sleep or a timeout, each of which the event loop counts once, however late it is."""


class TaskOwner:
    """Owner of background tasks: it keeps them, logs those that fail, and ends them all in `close`.

    asyncio alone holds only weak references to tasks and loses their exceptions.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it takes no more tasks."""
        return self._closed

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task, which is cancelled at `close` at the latest."""
        if self._closed:
            work.close()
            raise RuntimeError(f"task owner {self._name} is closed")
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}.{name}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def spawn_unless_closed(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Start a task for what may be left undone at the end. A call that ends after `close` must hear its own error,
        and not that of this owner.
        """
        if self._closed:
            work.close()
        else:
            self.spawn(work, name)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("task.failed", extra={"task": task.get_name()}, exc_info=error)

    async def wait_any(self, timeout: float) -> None:
        """Return when a task ends, or after `timeout` seconds."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(timeout)

    async def close(self) -> None:
        """Cancel all running tasks; at the return every task has ended. May be called twice."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._tasks)


async def uninterrupted(work: Awaitable[Result]) -> Result:
    """Finish work even if this task is cancelled meanwhile; the cancel is raised after it. For work of bounded length
    that must not be left half done.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            # Retrieve the exception, so that asyncio does not report it: the cancel is raised instead.
            task.exception()
        raise


async def side_by_side(*work: Awaitable[object]) -> None:
    """Run all work concurrently. If one fails, the others are cancelled and have ended before its error is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def slept_awake(seconds: float) -> bool:
    """Sleep, and return whether the event loop ran meanwhile. If not, this process stood still, and the silence of
    other processes in that time says nothing about them.
    """
    began, awake = time.monotonic(), True
    # Looked at as a whole, a halt that took nearly all of a long sleep, and ended soon after it, would not show.
    for _ in range(_LOOKS):
        part = time.monotonic()
        await asyncio.sleep(seconds / _LOOKS)
        awake = awake and time.monotonic() - part <= 1.5 * seconds / _LOOKS + _MOST_LATE_S
    # uvloop counts from the beginning of its turn: after a long turn the next sleep ends at once.
    return awake and 0.9 * seconds <= time.monotonic() - began


@asynccontextmanager
async def timeout_awake(seconds: float) -> AsyncIterator[None]:
    """Bound the time of an answer, as `asyncio.timeout` does, by time in which the event loop ran: after a process has
    stood still the answer may lie in its socket, unread.

    Raises:
        TimeoutError: the block took longer.
    """
    loop = asyncio.get_running_loop()
    left, timer = _LOOKS, None

    def look() -> None:
        nonlocal left, timer
        left -= 1
        if left:
            timer = loop.call_later(seconds / _LOOKS, look)
        else:
            limit.reschedule(loop.time())

    async with asyncio.timeout(None) as limit:
        timer = loop.call_later(seconds / _LOOKS, look)
        try:
            yield
        finally:
            timer.cancel()


class StopSignal:
    """The first signal that asked this process to end."""

    def __init__(self) -> None:
        self._first: signal.Signals | None = None

    def note(self, number: signal.Signals) -> None:
        """Keep a signal, unless another one was first."""
        self._first = self._first or number

    @property
    def status(self) -> int:
        """Exit status of a process that it ended before its work was done, as shells have it; without a signal that of
        Ctrl-C.
        """
        return 128 + (self._first or signal.SIGINT)


@contextmanager
def stop_signals(callback: Callable[[], None]) -> Iterator[StopSignal]:
    """Call `callback` on SIGINT, SIGTERM and SIGHUP while the block runs; it should only set a flag. A SIGHUP that the
    parent had ignored, as `nohup` does, stays ignored.
    """
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    first = StopSignal()

    def arrived(number: signal.Signals) -> None:
        first.note(number)
        if number is signal.SIGHUP:
            _hang_up()
        callback()

    for number in numbers:
        loop.add_signal_handler(number, arrived, number)
    try:
        yield first
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _hang_up() -> None:
    """Give up the terminal, which is gone: a write to it would fail in the middle of a drain."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for output in (1, 2):
        if stat.S_ISCHR(os.fstat(output).st_mode):
            os.dup2(nowhere, output)
    os.close(nowhere)


def still_runs(loop: asyncio.AbstractEventLoop, seconds: float) -> bool:
    """Return whether a loop runs a callback within some seconds. Call it on another thread."""
    ran = threading.Event()
    try:
        loop.call_soon_threadsafe(ran.set)
    except RuntimeError:
        # Closed.
        return False
    return ran.wait(seconds)
