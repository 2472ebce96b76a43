"""Pools that come and go while a router runs, as the registry says.

A pool that is removed takes no new requests at once. It is left when nothing of it waits or runs here, and its last
replica has gone: the process that starts replicas ends them when no router has anything left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from cluster.errors import NoReplicaError, UnavailableError
from cluster.lifecycle import TaskOwner, uninterrupted
from cluster.registry.pools import KIND, NOTHING_FIXED, in_force, same_but_live
from cluster.registry.view import LOOK_S, RegistryView
from cluster.settings import PoolSettings
from cluster.settings.registry import RegistrySettings
from router.admin.control import ControlApi
from router.catalog import Catalog
from router.dispatch.pool import Pool
from router.dispatch.pool_set import PoolSet
from router.jobs import JobParts
from router.metrics import RouterMetrics
from router.rollout.keeper import RolloutKeeper

_LOG = logging.getLogger(__name__)

LEARN_RETRY_S = 0.5
"""Pause between attempts to get a pool's tokenizer."""


@dataclass(frozen=True, slots=True)
class PoolUsers:
    """Parts of a router that have something for each pool."""

    catalog: Catalog
    metrics: RouterMetrics
    jobs: JobParts
    rollouts: RolloutKeeper
    control: ControlApi


class PoolKeeper:
    """Keeper of a router's pools."""

    def __init__(
        self,
        pools: PoolSet,
        running: dict[str, PoolSettings],
        view: RegistryView,
        open_pool: Callable[[str, PoolSettings], Pool],
        users: PoolUsers,
        *,
        fixed: RegistrySettings = NOTHING_FIXED,
    ) -> None:
        """`running`: the pools that take new requests, which others read. `fixed`: names that only the settings may
        change.
        """
        self._declared = dict(running)
        self._pools = pools
        self._running = running
        self._view = view
        self._open_pool = open_pool
        self._users = users
        self._fixed = fixed
        self._owner = TaskOwner("pools")
        self._empty: set[str] = set()
        """Pools that had nothing left at the last look."""
        self._bare: dict[str, float] = {}
        """Pools that take no new requests and have no replica, with the monotonic time since when."""
        self._learning: dict[str, asyncio.Task[None]] = {}
        for pool in pools.values():
            # They start before the registry is known, and what it has may be newer.
            pool.cells.layout.sure = False

    async def start(self) -> None:
        """Open the pools that should run, as far as the registry is known, and follow it from now on."""
        await self.look()
        for name, pool in self._pools.items():
            self._begin_to_learn(name, pool)
        self._owner.spawn(self._watch(), "watch")

    async def _watch(self) -> NoReturn:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - the other pools are served on
                _LOG.exception("pools.look_failed")

    async def look(self) -> None:
        """Open, change, close and leave pools, as far as that is due."""
        wanted: Mapping[str, PoolSettings] = self._running
        if self._view.known.is_set():
            wanted = in_force(self._declared, self._view.entries(KIND), self._fixed, self._running)
        for name in [name for name in self._running if name not in wanted]:
            await self._close(name)
        for name, settings in list(wanted.items()):
            if name not in self._running:
                await self._open(name, settings)
            elif not same_but_live(self._running[name], settings):
                # Another pool of the same name. What the old one had ends with its replicas.
                await self._close(name)
                await self._open(name, settings)
            elif self._running[name] != settings:
                self._change(name, settings)
        if self._view.known.is_set():
            for pool in self._pools.values():
                pool.cells.layout.confirm()
        for name in [name for name in self._pools if name not in self._running]:
            self._end_without_replicas(name)
            if not self._is_over(name):
                self._empty.discard(name)
            elif name in self._empty:
                await self._leave(name)
            else:
                # Once more: what has just ended is still being told.
                self._empty.add(name)

    def _is_over(self, name: str) -> bool:
        pool = self._pools[name]
        return not pool.active and not pool.replicas.records and not self._users.jobs.feeder.feeds(name)

    def _end_without_replicas(self, name: str) -> None:
        """End what waits in a pool that is being removed, once its replicas have gone: no other ones come."""
        pool, now = self._pools[name], time.monotonic()
        if pool.replicas.records:
            self._bare.pop(name, None)
        elif now - self._bare.setdefault(name, now) >= pool.queue_settings.lease_s:
            for choice in pool.choices.snapshot():
                if choice.state.waits:
                    choice.give_up(NoReplicaError.removed(name))

    async def _open(self, name: str, settings: PoolSettings) -> None:
        if name in self._pools:
            # It comes back before it was left. What it had ends with its replicas.
            await self._leave(name)
        users = self._users
        pool = self._open_pool(name, settings)
        users.metrics.count(pool)
        pool.job_work = partial(users.jobs.feeder.work, name)
        # Before it starts, so that the router's end closes it too.
        self._pools.put(name, pool)
        # A number of cells that is older than the registry's must not be noted as the newest.
        pool.cells.layout.sure = self._view.known.is_set()
        await pool.start()
        users.rollouts.join(name, settings)
        users.jobs.feeder.join(name, await users.jobs.stores.join(name))
        self._running[name] = settings
        self._begin_to_learn(name, pool)
        _LOG.warning("pool.opened", extra={"pool": name})

    def _change(self, name: str, settings: PoolSettings) -> None:
        self._running[name] = settings
        self._pools[name].change(settings)
        self._users.rollouts.pools[name].settings = settings
        _LOG.warning("pool.changed", extra={"pool": name})

    async def _close(self, name: str) -> None:
        self._pools[name].closing = True
        del self._running[name]
        self._users.jobs.feeder.leave(name)
        self._users.jobs.stores.leave(name)
        await uninterrupted(self._users.rollouts.leave(name))
        _LOG.warning("pool.closing", extra={"pool": name})

    async def _leave(self, name: str) -> None:
        pool = self._pools[name]
        # Before it is closed: nobody may ask one that is.
        self._pools.drop(name)
        self._empty.discard(name)
        self._bare.pop(name, None)
        if (learning := self._learning.pop(name, None)) is not None:
            learning.cancel()
        await uninterrupted(pool.close())
        await uninterrupted(self._users.control.leave(name))
        self._users.catalog.forget(name)
        _LOG.warning("pool.left", extra={"pool": name})

    def _begin_to_learn(self, name: str, pool: Pool) -> None:
        if name not in self._learning:
            self._learning[name] = self._owner.spawn(self._learn(pool), "learn")

    async def _learn(self, pool: Pool) -> None:
        # Load it now. With the first request it could come with a thousand others.
        await pool.replicas.first_seen.wait()
        while not pool.closing:
            try:
                await self._users.catalog.model(pool)
                return
            except UnavailableError:
                pass
            except Exception:  # noqa: BLE001 - it comes with a request, or with the next try
                _LOG.exception("pools.learn_failed", extra={"pool": pool.name})
            await asyncio.sleep(LEARN_RETRY_S)

    async def close(self) -> None:
        """Follow the registry no more."""
        await self._owner.close()
