"""Stores of announced load by name, and what a pool gets of it by its own name and through aliases."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from cluster.announced.contract import AliasParts, AnnouncedStore
from cluster.announced.load import AnnouncedLoad
from cluster.errors import QueueUnavailableError

_LOG = logging.getLogger(__name__)


class AnnouncedStores:
    """Stores of one process by the name of a pool or an alias. Each opens at its first use."""

    def __init__(self, open_store: Callable[[str], AnnouncedStore]) -> None:
        self._open = open_store
        self._stores: dict[str, AnnouncedStore] = {}

    def of(self, name: str) -> AnnouncedStore:
        """Return the store of a name."""
        if name not in self._stores:
            self._stores[name] = self._open(name)
        return self._stores[name]

    async def keep(self, names: Collection[str]) -> None:
        """Close the stores of all other names."""
        for name in [name for name in self._stores if name not in names]:
            await self._stores.pop(name).close()

    async def close(self) -> None:
        """Close all."""
        await self.keep(())


class PoolLoads:
    """Announced load of one pool: what names the pool, and its part of what names an alias. The parts are those of the
    moment of each read.
    """

    def __init__(self, pool: str, stores: AnnouncedStores, aliases: AliasParts) -> None:
        self._pool = pool
        self._stores = stores
        self._aliases = aliases
        self._last: dict[str, Sequence[AnnouncedLoad]] = {}
        """What was read last of each alias."""

    async def read(self) -> Sequence[AnnouncedLoad]:
        """Read all that is not over, in order of their beginning.

        Raises:
            QueueUnavailableError: the pool's own store does not answer. Where that of an alias does not, what was read
                last counts: it may be at another server.
        """
        found = list(await self._stores.of(self._pool).read())
        last, self._last = self._last, {}
        for alias in self._aliases.leading_to(self._pool):
            try:
                loads = await self._stores.of(alias).read()
            except QueueUnavailableError as error:
                _LOG.warning("announced.alias_away", extra={"pool": self._pool, "alias": alias, "error": str(error)})
                loads = last.get(alias, ())
            self._last[alias] = loads
            found += self._parts(alias, loads)
        return sorted(found, key=lambda load: (load.starts_ms, load.tenant))

    def _parts(self, alias: str, loads: Sequence[AnnouncedLoad]) -> list[AnnouncedLoad]:
        parts = [(load, self._aliases.parts(alias, load.tenant).get(self._pool, 0.0)) for load in loads]
        return [load.part(self._pool, part, alias) for load, part in parts if part]
