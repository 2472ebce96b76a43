"""Membership of this router in a pool: the lease that its heartbeats renew, and what they tell."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from cluster.errors import QueueUnavailableError
from cluster.lease_keeper import LeaseKeeper
from cluster.queue.contract import Queue
from cluster.queue.heartbeats import RouterBeat, RouterBeatReply
from cluster.settings import QueueSettings
from router.dispatch.pool_context import PoolContext

_LOG = logging.getLogger(__name__)


class Membership:
    """Lease of one router in one pool, renewed on a thread and a connection of its own."""

    def __init__(
        self,
        context: PoolContext,
        settings: QueueSettings,
        open_queue: Callable[[], Queue],
        describe: Callable[[], RouterBeat],
        beaten: Callable[[RouterBeatReply], None],
    ) -> None:
        """`describe` is called on the thread; `beaten` gets each answer on the loop that starts this."""
        self.parted = False
        """Whether some of its requests were left to other routers."""
        self._period_s = settings.heartbeat_s
        self._router_id = context.router_id
        self._open_queue = open_queue
        self._describe = describe
        self._queue: Queue | None = None
        self._started: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._keeper: LeaseKeeper[RouterBeatReply] = LeaseKeeper(
            f"router.{context.name}",
            self._beat,
            beaten,
            self._leave,
            period_s=settings.heartbeat_s,
            lease_s=settings.lease_s,
        )

    async def start(self) -> None:
        """Join; returns after the first heartbeat was tried."""
        await self._keeper.start()

    async def stop(self) -> None:
        """Leave."""
        await self._keeper.stop()

    @property
    def held(self) -> bool:
        """Whether the lease is held."""
        return self._keeper.held

    @property
    def problem(self) -> str:
        """Reason why the newest heartbeat failed; empty after a success."""
        return self._keeper.problem

    @property
    def longest_lag_s(self) -> float:
        """The longest that the event loop let the lease wait for a sign of life."""
        return self._keeper.longest_lag_s

    @property
    def stalled_s(self) -> float:
        """How long the event loop stood still, all times together."""
        return self._keeper.stalled_s

    def nudge(self) -> None:
        """Beat now."""
        self._keeper.nudge()

    def started(self, request_id: str, attempt: str) -> None:
        """Report with the next heartbeat that a grant was used."""
        with self._lock:
            self._started.append((request_id, attempt))

    # --- on the keeper's thread ---------------------------------------------------------------------------------------

    async def _beat(self) -> RouterBeatReply:
        if self._queue is None:
            self._queue = self._open_queue()
        with self._lock:
            started, self._started = self._started, []
        busy = self._keeper.lag_s > self._period_s / 2
        try:
            beat = replace(self._describe(), started=tuple(started), busy=busy)
            return await self._queue.heartbeat_router(beat)
        except BaseException:
            # The next one tells it.
            with self._lock:
                self._started = started + self._started
            raise

    async def _leave(self) -> None:
        if self._queue is None:
            return
        try:
            await self._queue.retire_router(self._router_id, keep=self.parted)
        except QueueUnavailableError:
            _LOG.warning("router.lease_left_to_expire")
        finally:
            await self._queue.close()
