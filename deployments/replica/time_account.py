"""Account of a replica's wall time by what its GPUs did. Times are seconds of the monotonic clock."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from cluster.errors import QueueUnavailableError
from cluster.models import EngineStats
from cluster.queue.contract import ReplicaQueue
from cluster.queue.heartbeats import ReplicaTimes

_LOG = logging.getLogger(__name__)

REPORT_S = 5.0
"""Seconds between two reports of a start. A start that is killed loses at most so much."""


class TimeAccount:
    """Account from a replica's first moment to its last. Pure.

    `idle`, `standby` and `draining` are measured: wall time without an engine step. `ended` and `running` are what the
    engine charged its sequences. The two are independent, so that their sum shows whether the charges are right.
    """

    def __init__(self, born_at: float, gpus: int, price_per_gpu_s: float) -> None:
        self._born_at = born_at
        self._gpus = gpus
        self.price_per_gpu_s = price_per_gpu_s
        """Price of what is used from now on."""
        self._ready_at: float | None = None
        self._warm_up_s = 0.0
        """Busy time before the replica took work."""
        self._warm_up_gpu_s = 0.0
        self._idle_before_drain: float | None = None
        """Spare time when the drain began, in seconds; None before."""
        self._stood: tuple[float, float | None] = 0.0, None
        """Spare time of standbys that are over, and the spare time when the present one began; None outside of one. One
        value, because other threads read the account."""

    def ready(self, now: float, stats: EngineStats) -> None:
        """Note that the start is over."""
        self._ready_at, self._warm_up_s, self._warm_up_gpu_s = now, stats.busy_s, stats.ended_gpu_s

    def drain(self, now: float, stats: EngineStats) -> None:
        """Note that the replica takes no new work any more. Later calls change nothing."""
        self.serve(now, stats)
        if self._idle_before_drain is None and self._ready_at is not None:
            self._idle_before_drain = self._spare(now, self._ready_at, stats)

    def stand_by(self, now: float, stats: EngineStats) -> None:
        """Note that the replica stands by. What it still runs counts as before."""
        over, began = self._stood
        if began is None and self._ready_at is not None and self._idle_before_drain is None:
            self._stood = over, self._spare(now, self._ready_at, stats)

    def serve(self, now: float, stats: EngineStats) -> None:
        """Note that the replica stands by no more. Later calls change nothing."""
        if self._ready_at is not None:
            self._stood = self._standby(self._spare(now, self._ready_at, stats)), None

    def _standby(self, spare: float) -> float:
        over, began = self._stood
        return over if began is None else over + max(0.0, spare - began)

    def read(self, now: float, stats: EngineStats) -> ReplicaTimes:
        """Return the account up to now."""
        gpus, ready_at = self._gpus, self._ready_at
        total = (now - self._born_at) * gpus
        if ready_at is None:
            return ReplicaTimes(gpus, self.price_per_gpu_s, total=total, starting=total)
        spare = self._spare(now, ready_at, stats)
        unused = spare if self._idle_before_drain is None else min(spare, self._idle_before_drain)
        standby = min(unused, self._standby(spare))
        return ReplicaTimes(
            gpus,
            self.price_per_gpu_s,
            total=total,
            starting=(ready_at - self._born_at) * gpus,
            idle=(unused - standby) * gpus,
            draining=(spare - unused) * gpus,
            ended=stats.ended_gpu_s - self._warm_up_gpu_s,
            running=stats.live_gpu_s + stats.open_s * gpus,
            standby=standby * gpus,
        )

    def _spare(self, now: float, ready_at: float, stats: EngineStats) -> float:
        return max(0.0, now - ready_at - (stats.busy_s - self._warm_up_s) - stats.open_s)


class TimeReport:
    """The account as the store knows it. It is reported from outside the lease while the replica starts, and when it
    has stopped; between the two every heartbeat has it.
    """

    def __init__(
        self, replica_id: str, open_queue: Callable[[], ReplicaQueue], read: Callable[[], ReplicaTimes]
    ) -> None:
        """`read` returns the account up to now; called from several threads."""
        self.read = read
        self.told: ReplicaTimes | None = None
        """Account that the store was told last, here or by a heartbeat."""
        self._replica_id = replica_id
        self._open_queue = open_queue
        self._over = threading.Event()
        # vLLM holds the event loop up while it loads.
        self._thread = threading.Thread(target=self._watch, name=f"replica.{replica_id}-start", daemon=True)

    def begin(self) -> None:
        """Report every few seconds until `end`."""
        self._thread.start()

    async def end(self) -> None:
        """Stop these reports. May be called twice."""
        self._over.set()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    async def last(self) -> None:
        """Report once more, with the time of the stop; nothing for a replica that never began to start."""
        if self._thread.ident is None:
            return
        queue = self._open_queue()
        try:
            await self._tell(queue)
        finally:
            await queue.close()

    def _watch(self) -> None:
        asyncio.run(self._report())

    async def _report(self) -> None:
        queue = self._open_queue()
        try:
            while True:
                await self._tell(queue)
                if await asyncio.to_thread(self._over.wait, REPORT_S):
                    return
        finally:
            await queue.close()

    async def _tell(self, queue: ReplicaQueue) -> None:
        times = self.read()
        try:
            await queue.account(self._replica_id, times, self.told)
        except QueueUnavailableError as error:
            # The next report has it.
            _LOG.debug("time_report.later", extra={"error": str(error)})
            return
        self.told = times
