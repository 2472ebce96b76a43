"""Renewal of leases from a separate thread, so that a busy event loop does not look like a dead process.

A loop that stands still for the whole length of a lease counts as dead: then the thread stops renewing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from cluster.errors import QueueUnavailableError

_LOG = logging.getLogger(__name__)

Reply = TypeVar("Reply")

STALL_S = 0.25
"""Seconds. An owner's loop that takes longer to answer stood still; a shorter time is one long turn of the loop."""


class LeaseKeeper(Generic[Reply]):
    """Lease keeper: a thread with its own loop that calls `beat` every `period_s` and hands replies to the owner's
    loop.

    Args:
        name: name of the thread, also for the log.
        beat: sends one heartbeat; called on the keeper's loop only. Raises QueueUnavailableError when the store does
            not answer.
        on_reply: called with each reply on the loop that called `start`.
        close: closes what `beat` uses; called once on the keeper's loop.
        period_s: seconds between heartbeats.
        lease_s: seconds for which a heartbeat keeps the lease.
    """

    def __init__(
        self,
        name: str,
        beat: Callable[[], Awaitable[Reply]],
        on_reply: Callable[[Reply], None],
        close: Callable[[], Awaitable[None]],
        *,
        period_s: float,
        lease_s: float,
    ) -> None:
        self._name = name
        self._beat = beat
        self._on_reply = on_reply
        self._close = close
        self._period_s = period_s
        self._lease_s = lease_s
        self._owner_loop: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._nudge: asyncio.Event | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"{name}-lease", daemon=True)
        self._renewed_at = float("-inf")
        self.problem = ""
        """Reason why the newest heartbeat failed; empty after a success."""
        self._last_failure = ""
        """Text of the newest failure that was logged with its traceback; empty after a success."""
        self._asked_at: float | None = None
        """Time at which the owner's loop was asked for a sign of life, in monotonic seconds; None when it owes none."""
        self.longest_lag_s = 0.0
        """Longest time in seconds that the owner's loop took to answer, since start."""
        self.stalled_s = 0.0
        """Total time in seconds that the owner's loop stood still, since start."""
        self._started = threading.Event()

    async def start(self) -> None:
        """Start the thread; return after the first heartbeat was tried."""
        self._owner_loop = asyncio.get_running_loop()
        self._thread.start()
        await asyncio.to_thread(self._started.wait)

    @property
    def held(self) -> bool:
        """Whether the lease is certainly still held, counted from before the last successful renewal was sent."""
        return time.monotonic() - self._renewed_at < self._lease_s

    def nudge(self) -> None:
        """Send a heartbeat now rather than at the end of the period."""
        if self._loop is not None and self._nudge is not None and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._nudge.set)
            except RuntimeError:
                # The keeper's loop closed between the check and the call, so the keeper is stopping anyway.
                return

    async def stop(self) -> None:
        """End the thread; after the return no heartbeat is sent. May be called twice."""
        self._stopping = True
        self.nudge()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._nudge = asyncio.Event()
        try:
            while not self._stopping:
                began = time.monotonic()
                await self._beat_once(began)
                self._started.set()
                rest = self._period_s - (time.monotonic() - began)
                try:
                    async with asyncio.timeout(max(rest, 0.0)):
                        await self._nudge.wait()
                except TimeoutError:
                    continue
                self._nudge.clear()
        finally:
            self._started.set()
            await self._close()

    @property
    def lag_s(self) -> float:
        """Seconds for which the owner's loop has owed a sign of life; 0 when it owes none."""
        # Read once: the owner's loop may answer between two reads.
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def _ask_owner(self, now: float) -> bool:
        """Ask the owner's loop for a sign of life; return whether it still counts as alive."""
        if self._asked_at is None:
            self._asked_at = now
            if not self._tell_owner(self._answer):
                self._asked_at = None
        return self.lag_s < self._lease_s

    def _tell_owner(self, callback: Callable[..., None], *arguments: Any) -> bool:
        """Have the owner's loop call something. Return whether the loop is still there."""
        try:
            if self._owner_loop is not None:
                self._owner_loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # It closed: the owner ends without a stop of this keeper.
            return False
        return self._owner_loop is not None

    def _answer(self) -> None:
        lag_s = self.lag_s
        self._asked_at = None
        self.longest_lag_s = max(self.longest_lag_s, lag_s)
        if lag_s > STALL_S:
            self.stalled_s += lag_s

    async def _beat_once(self, began: float) -> None:
        if not self._ask_owner(began):
            self.problem = f"the process has stood still for {self.lag_s:.1f} s"
            _LOG.error("lease.owner_stands_still", extra={"lease": self._name, "lag_s": round(self.lag_s, 1)})
            return
        try:
            reply = await self._beat()
        except QueueUnavailableError as error:
            self.problem = str(error)
            _LOG.warning("lease.not_renewed", extra={"lease": self._name, "error": str(error)})
            return
        except Exception as error:  # noqa: BLE001 - logged, and the next one is tried
            # Continue after any error: without this thread the process would count as dead for ever.
            self.problem = type(error).__name__
            self._log_failure(error)
            return
        self._renewed_at = began
        self.problem = self._last_failure = ""
        self._tell_owner(self._on_reply, reply)

    def _log_failure(self, error: Exception) -> None:
        """Log a failure. One that is as the last one gets a line without its traceback, since there may be one every
        second.
        """
        text = f"{type(error).__name__}: {error}"
        again = text == self._last_failure
        self._last_failure = text
        fields = {"lease": self._name, "error": text}
        _LOG.error("lease.beat_failed", extra=fields, exc_info=None if again else error)
