"""The job stores of all pools: of pools that are served, and of pools that were."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from cluster.errors import PenstockError, QueueUnavailableError
from cluster.jobs.contract import JobRecord, JobStore
from cluster.jobs.pools import JobPools
from cluster.lifecycle import TaskOwner

_LOG = logging.getLogger(__name__)

SWEEP_S = 60.0
"""Pause between two sweeps of pools that are not served."""


class JobStores:
    """Job stores of all pools.

    A pool that left the settings, or was renamed, is not served any more. Its jobs can be read, cancelled and deleted,
    and are removed when they are due. No router runs them.
    """

    def __init__(
        self, served: Iterable[str], open_store: Callable[[str], JobStore], register: JobPools, sweep_s: float = SWEEP_S
    ) -> None:
        """`open_store` takes a pool's name."""
        self._served = {name: open_store(name) for name in served}
        self.served: Mapping[str, JobStore] = self._served
        self._open_store = open_store
        self._register = register
        self._sweep_s = sweep_s
        self._retired: dict[str, JobStore] = {}
        self._owner = TaskOwner("jobs.stores")

    async def start(self) -> None:
        """Register the pools that are served, and begin to look after pools that are not."""
        # Before jobs come: a job that is submitted here must be found later. Without Redis none can be submitted.
        with suppress(QueueUnavailableError):
            await self._register.add(self.served.keys())
        self._owner.spawn(self._look_after(), "retired")

    async def find(self, pool: str) -> JobStore | None:
        """Return a pool's store; None for a pool that never had one.

        Raises:
            QueueUnavailableError: the pool is not served, and Redis can't tell now whether it was.
        """
        if pool in self.served:
            return self.served[pool]
        if pool not in self._retired:
            await self._meet()
        return self._retired.get(pool)

    async def every(self) -> tuple[JobStore, ...]:
        """Return the stores of all pools.

        Raises:
            QueueUnavailableError: Redis does not answer.
        """
        await self._meet()
        return (*self.served.values(), *self._retired.values())

    async def named(self, tenant: str, key: str, pool: str) -> JobRecord | None:
        """Return a tenant's job with a client key, of a pool or else of any other; None if there is none. An alias may
        have had another pool when the job came.

        Raises:
            QueueUnavailableError: Redis does not answer, so there may be one.
        """
        own = await self.find(pool)
        if own is not None and (record := await own.find(tenant, key)) is not None:
            return record
        others = [store for store in await self.every() if store is not own]
        found = await asyncio.gather(*(store.find(tenant, key) for store in others))
        return next(filter(None, found), None)

    async def join(self, name: str) -> JobStore:
        """Serve a pool from now on. Return its store."""
        self._served[name] = store = self._retired.pop(name, None) or self._open_store(name)
        with suppress(QueueUnavailableError):
            # The next turn of the sweep tries again.
            await self._register.add([name])
        return store

    def leave(self, name: str) -> None:
        """Serve a pool no more. Its jobs can be read, and are run where a pool of this name comes again."""
        self._retired[name] = self._served.pop(name)

    async def close(self) -> None:
        """Close all stores. May be called twice."""
        await self._owner.close()
        stores = (*self.served.values(), *self._retired.values())
        await asyncio.gather(self._register.close(), *(store.close() for store in stores))

    async def _meet(self) -> None:
        for name in await self._register.names():
            if name not in self.served and name not in self._retired:
                _LOG.info("jobs.pool_retired", extra={"pool": name})
                self._retired[name] = self._open_store(name)

    async def _look_after(self) -> None:
        while True:
            try:
                # Register again each time: Redis may have come back without it.
                await self._register.add(self.served.keys())
                await self._meet()
            except QueueUnavailableError:
                # The feeder logs it. The next turn tries again.
                pass
            await asyncio.gather(*(self._sweep(name, store) for name, store in list(self._retired.items())))
            await asyncio.sleep(self._sweep_s)

    async def _sweep(self, name: str, store: JobStore) -> None:
        try:
            await store.sweep()
        except QueueUnavailableError:
            # Other pools may be on other servers, and are swept.
            pass
        except PenstockError:
            _LOG.exception("jobs.retired_failed", extra={"pool": name})
