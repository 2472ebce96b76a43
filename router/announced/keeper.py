"""The router's part in announced load: it knows who has announced some, and counts what those tenants send.

The autoscaler judges announcements by these counters. Counting all tenants would make heartbeats grow with them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from cluster.announced.contract import AnnouncedStore
from cluster.announced.load import AnnouncedLoad
from cluster.announced.stores import AnnouncedStores, PoolLoads
from cluster.errors import QueueUnavailableError
from cluster.lifecycle import TaskOwner
from router.dispatch.pool import Pool
from router.routing import Aliases

_LOG = logging.getLogger(__name__)

PERIOD_S = 5.0
"""Time between two looks. What a tenant sends is judged minutes after its announcement begins."""


class AnnouncedKeeper:
    """The announced load of all pools. Connections open at the first use."""

    def __init__(
        self, pools: Mapping[str, Pool], open_store: Callable[[str], AnnouncedStore], aliases: Aliases
    ) -> None:
        """`open_store` takes the name of a pool or an alias."""
        self._pools = pools
        self._aliases = aliases
        self._stores = AnnouncedStores(open_store)
        self._loads: dict[str, PoolLoads] = {}
        self._owner = TaskOwner("announced")

    def store(self, name: str) -> AnnouncedStore:
        """Return the store of a pool or an alias."""
        return self._stores.of(name)

    async def loads(self, pool: str) -> Sequence[AnnouncedLoad]:
        """Read what is announced for a pool, by its own name or through an alias.

        Raises:
            QueueUnavailableError: the store does not answer.
        """
        return await self._of(pool).read()

    def start(self) -> None:
        """Begin to look who has announced load."""
        self._owner.spawn(self._watch(), "watch")

    async def _watch(self) -> NoReturn:
        while True:
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - it must not end the router
                _LOG.exception("announced.look_failed")
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> None:
        """Tell each pool whom to count."""
        for name, pool in list(self._pools.items()):
            if pool.settings.autoscale.announced == "off":
                pool.admission.demand.follow(())
                continue
            try:
                loads = await self.loads(name)
            except QueueUnavailableError:
                # The membership of the pool has logged it.
                continue
            pool.admission.demand.follow({load.tenant for load in loads})
        self._loads = {name: loads for name, loads in self._loads.items() if name in self._pools}
        await self._stores.keep({*self._pools, *self._aliases.names()})

    def _of(self, pool: str) -> PoolLoads:
        return self._loads.setdefault(pool, PoolLoads(pool, self._stores, self._aliases))

    async def close(self) -> None:
        """End, and close the connections."""
        await self._owner.close()
        await self._stores.close()
