"""The routers' part in roll-outs: each looks at every pool's record, and moves it on when the next step is due.

No router leads. The record changes only as its last reader expects, so of several routers that take the same step one
succeeds, and a router that hung can't undo what others did. When a router dies, the others take the next step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import NoReturn

from cluster.errors import QueueUnavailableError
from cluster.lifecycle import TaskOwner
from cluster.queue.contract import Queue
from cluster.queue.heartbeats import PoolView
from cluster.rollout.book import RolloutBook
from cluster.rollout.changes import applies
from cluster.rollout.contract import RolloutStore
from cluster.rollout.decide import Seen, decide, resized
from cluster.rollout.judge import Member
from cluster.rollout.record import Rollout
from cluster.settings import PoolSettings, QueueSettings, Settings
from router.rollout.members import members_of

_LOG = logging.getLogger(__name__)


class PoolRollout:
    """One pool's roll-out. It opens its connections at the first use."""

    def __init__(
        self,
        name: str,
        settings: PoolSettings,
        queue_settings: QueueSettings,
        open_store: Callable[[], RolloutStore],
        open_queue: Callable[[], Queue],
    ) -> None:
        self.name = name
        self.settings = settings
        self._timing = queue_settings
        self._open_store = open_store
        self._open_queue = open_queue
        self._book: RolloutBook | None = None
        self._queue: Queue | None = None
        self._run_id = ""
        self._seen_ms = 0
        self._settled_ms = 0
        """Pool time from which the registry is whole again."""
        self._replicas: int | None = None
        """Number of the settings at the last look, 0 where an autoscaler decides on it; None before the first look."""
        self.newest: Rollout | None = None
        """The roll-out as last read, whether it goes on or has ended; None without one."""

    @property
    def book(self) -> RolloutBook:
        """The pool's record."""
        if self._book is None:
            self._book = RolloutBook(self.name, self._open_store())
        return self._book

    async def members(self) -> list[Member]:
        """Return the replicas with a live lease.

        Raises:
            QueueUnavailableError: the store does not answer.
        """
        return members_of(await self._observe())

    async def _observe(self) -> PoolView:
        """Return the pool as its registry shows it.

        Raises:
            QueueUnavailableError: the store does not answer.
        """
        if self._queue is None:
            self._queue = self._open_queue()
        return await self._queue.observe()

    async def watch(self) -> NoReturn:
        """Take each step that is due; runs until it is cancelled."""
        while True:
            try:
                await self.step()
            except QueueUnavailableError:
                # The membership of the pool has logged it.
                pass
            except Exception:  # noqa: BLE001 - a roll-out must not end the router
                _LOG.exception("rollout.step_failed", extra={"pool": self.name})
            await asyncio.sleep(self._timing.heartbeat_s)

    async def step(self) -> None:
        """Take the next step if it is due.

        Raises:
            QueueUnavailableError: the store does not answer; nothing was done.
        """
        await self._follow_size()
        found, _ = await self.book.read()
        self.newest = found if applies(found, self.settings) else None
        if found is None or self.newest is None or not found.state.active:
            return
        view = await self._observe()
        if not self._settled(view):
            return
        seen = Seen(view.time_ms, members_of(view))
        # With a newer record the view could lack what another router has seen: the next look decides.
        after = await self.book.change(lambda record, _: decide(found, seen) if record == found else record)
        if after is not None and after.steps != found.steps:
            self._tell(after)

    async def _follow_size(self) -> None:
        """Give a roll-out that goes on the number of replicas that the settings have now, if that has changed."""
        own = self.settings
        replicas = own.replicas if own.autoscale.mode != "active" else 0
        if replicas and self._replicas not in (None, replicas):
            await self.book.change(
                lambda record, at_ms: resized(record, replicas, at_ms) if record and applies(record, own) else record
            )
        self._replicas = replicas

    def _settled(self, view: PoolView) -> bool:
        """Return whether a replica that is missing has really gone. After a time without the store, a loss of its data
        or a jump of its clock, replicas have one lease to come back.
        """
        lease_ms = round(self._timing.lease_s * 1000)
        if view.run_id != self._run_id or not 0 <= view.time_ms - self._seen_ms <= lease_ms:
            self._settled_ms = view.time_ms + lease_ms
        self._run_id, self._seen_ms = view.run_id, view.time_ms
        return view.time_ms >= self._settled_ms

    def _tell(self, found: Rollout) -> None:
        last = found.steps[-1].text if found.steps else ""
        _LOG.warning("rollout.step", extra={"pool": self.name, "state": found.state.value, "step": last})

    async def close(self) -> None:
        """Close the connections."""
        if self._book is not None:
            await self._book.close()
        if self._queue is not None:
            await self._queue.close()


class RolloutKeeper:
    """The roll-outs of all pools."""

    def __init__(
        self, pools: Mapping[str, PoolSettings], open_rollout: Callable[[str, PoolSettings], PoolRollout]
    ) -> None:
        self._open = open_rollout
        self._pools = {name: open_rollout(name, pool) for name, pool in pools.items()}
        self.pools: Mapping[str, PoolRollout] = self._pools
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._owner = TaskOwner("rollouts")

    def start(self) -> None:
        """Begin to look at the records."""
        for name in self.pools.keys() - self._watches.keys():
            pool = self.pools[name]
            self._watches[name] = self._owner.spawn(pool.watch(), name)

    def join(self, name: str, settings: PoolSettings) -> None:
        """Look at the record of another pool, too."""
        self._pools[name] = pool = self._open(name, settings)
        self._watches[name] = self._owner.spawn(pool.watch(), name)

    async def leave(self, name: str) -> None:
        """Look at the record of a pool no more."""
        pool, watch = self._pools.pop(name), self._watches.pop(name, None)
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])
        await pool.close()

    async def close(self) -> None:
        """End, and close the connections."""
        await self._owner.close()
        for pool in self.pools.values():
            await pool.close()


def open_rollouts(
    settings: Settings,
    open_store: Callable[[str], RolloutStore],
    open_queue: Callable[[str], Queue],
) -> RolloutKeeper:
    """Return the roll-outs of all pools. Nothing connects before `start`, or the first order."""

    def open_rollout(name: str, pool: PoolSettings) -> PoolRollout:
        stores = partial(open_store, name), partial(open_queue, name)
        return PoolRollout(name, pool, settings.queue, *stores)

    return RolloutKeeper(settings.pools, open_rollout)
