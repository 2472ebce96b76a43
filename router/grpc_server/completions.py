"""Operations of gRPC's core in progress, and the callbacks at their ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from router.grpc_server.core import PAST, core

_LOG = logging.getLogger(__name__)

_URGENT_S = 0.001
"""Pause between two looks while a caller waits for an operation to end; the shortest of libuv's timers."""
_CALM_S = 0.02
"""Pause between two looks while calls are open: it bounds the time until a cancel is noticed."""
_URGENT_LOOKS = 50
"""Looks without result until the pause is long again: a client that does not read must not keep the timer busy."""

Done = Callable[[Any], None]
"""Callback that takes the event; `success` is whether the operations succeeded."""


class Completions:
    """Operations in progress. Their callbacks run here, in the loop's thread.

    The end of an operation wakes no thread. Instead each writer looks for ended operations first, and a timer looks
    while operations are in progress. In grpc.aio each write costs a thread, a socket and a turn of the event loop. Here
    a write that leaves at once costs none of them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start without operations. Everything is used on the loop's thread alone."""
        self.queue = core.CompletionQueue()
        self.under_way = 0
        self._complete = core.CompletionType.operation_complete
        self._loop = loop
        self._waiters = 0
        self._timer: asyncio.TimerHandle | None = None
        self._next_at = 0.0
        self._idle_looks = 0

    def start(self, call: Any, operations: tuple[Any, ...], done: Done) -> None:
        """Start operations as one batch; `done` runs in the loop's thread when all of them have ended.

        Raises:
            ValueError: the core refuses them; `done` never runs.
        """
        if refused := call.start_server_batch(operations, done):
            raise ValueError(f"the core refused operations: {refused}")
        self.under_way += 1
        if self._timer is None:
            self._arm()

    def collect(self) -> None:
        """Run the callbacks of all operations that have ended."""
        while self.collect_one():
            pass

    def collect_one(self) -> bool:
        """Run the callback of the operation that ended first, and return whether there is one."""
        if not self.under_way:
            return False
        event = self.queue.poll(PAST)
        if event.completion_type != self._complete:
            return False
        self.under_way -= 1
        self._idle_looks = 0
        try:
            event.tag(event)
        except Exception:  # noqa: BLE001 - the caller is the handler of another call
            _LOG.exception("call.completion_failed")
        return True

    async def wait(self, done: asyncio.Future[None]) -> None:
        """Wait for a future that the end of an operation resolves; look more often meanwhile."""
        self.hurry()
        try:
            await done
        finally:
            self.relax()

    def hurry(self) -> None:
        """Look often until `relax` has been called once for each `hurry`, but not long without result."""
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
        """Stop the timer and the queue. No operation may be in progress."""
        if self._timer is not None:
            self._timer.cancel()
        self.queue.shutdown()
