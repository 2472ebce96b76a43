"""Operations under way, and who hears of their ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from router.grpc_server.core import PAST, core

_LOG = logging.getLogger(__name__)

_URGENT_S = 0.001
"""Between looks while somebody waits for an operation to end; the finest that libuv's timers know."""
_CALM_S = 0.02
"""Between looks while calls are open: the time that a cancel needs to be noticed."""
_URGENT_LOOKS = 50
"""Looks that found nothing until nothing is urgent: a client that does not read must not keep the timer running."""

Done = Callable[[Any], None]
"""Takes the event; its `success` says whether the operations did what they should."""


class Completions:
    """Starts operations and runs what follows them.

    Nobody is woken when an operation ends: whoever writes looks first, and a timer looks while operations are under
    way. A write that left at once costs no thread, no socket and no turn of the event loop, as it does in grpc.aio.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Belongs to a loop, and is used on its thread alone."""
        self.queue = core.CompletionQueue()
        self.under_way = 0
        self._complete = core.CompletionType.operation_complete
        self._loop = loop
        self._waiters = 0
        self._timer: asyncio.TimerHandle | None = None
        self._next_at = 0.0
        self._idle_looks = 0

    def start(self, call: Any, operations: tuple[Any, ...], done: Done) -> None:
        """Start operations as one batch; `done` runs when all of them have ended, in this loop's thread.

        Raises:
            ValueError: the core takes none of them, and `done` never runs.
        """
        if refused := call.start_server_batch(operations, done):
            raise ValueError(f"the core refused operations: {refused}")
        self.under_way += 1
        if self._timer is None:
            self._arm()

    def collect(self) -> None:
        """Run what follows the operations that have ended."""
        while self.collect_one():
            pass

    def collect_one(self) -> bool:
        """Run what follows the operation that ended first; says whether there is one."""
        if not self.under_way:
            return False
        event = self.queue.poll(PAST)
        if event.completion_type != self._complete:
            return False
        self.under_way -= 1
        self._idle_looks = 0
        try:
            event.tag(event)
        except Exception:  # noqa: BLE001 - whoever looks is somebody else's handler
            _LOG.exception("call.completion_failed")
        return True

    async def wait(self, done: asyncio.Future[None]) -> None:
        """Wait for a future that the end of an operation resolves, with more frequent looks."""
        self.hurry()
        try:
            await done
        finally:
            self.relax()

    def hurry(self) -> None:
        """Look often for a while, until `relax` is called as often."""
        self._waiters += 1
        self._idle_looks = 0
        if self._timer is not None and self._next_at > self._loop.time() + _URGENT_S:
            self._timer.cancel()
            self._arm()

    def relax(self) -> None:
        """End a `hurry`."""
        self._waiters -= 1

    def _arm(self) -> None:
        pause_s = _URGENT_S if self._waiters and self._idle_looks < _URGENT_LOOKS else _CALM_S
        self._next_at = self._loop.time() + pause_s
        self._timer = self._loop.call_later(pause_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._idle_looks += 1
        self.collect()
        if self.under_way and self._timer is None:
            self._arm()

    def close(self) -> None:
        """End; nothing may be under way."""
        if self._timer is not None:
            self._timer.cancel()
        self.queue.shutdown()
