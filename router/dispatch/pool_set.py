"""The pools of a router, which come and go while it runs."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView

from router.dispatch.pool import Pool


class PoolSet(Mapping[str, Pool]):
    """Pools by name, those that end included. Threads may read it while the event loop changes it: what they iterate
    over never changes.
    """

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self._pools = dict(pools)

    def __getitem__(self, name: str) -> Pool:
        return self._pools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pools)

    def __len__(self) -> int:
        return len(self._pools)

    def keys(self) -> KeysView[str]:
        return self._pools.keys()

    def values(self) -> ValuesView[Pool]:
        return self._pools.values()

    def items(self) -> ItemsView[str, Pool]:
        return self._pools.items()

    def put(self, name: str, pool: Pool) -> None:
        """Add a pool."""
        self._pools = {**self._pools, name: pool}

    def drop(self, name: str) -> None:
        """Take a pool out."""
        self._pools = {each: pool for each, pool in self._pools.items() if each != name}
