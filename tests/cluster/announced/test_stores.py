"""A pool gets its part of what is announced to aliases, by their targets at the time of the look."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from cluster.announced.contract import Put
from cluster.announced.load import AnnouncedLoad
from cluster.announced.stores import AnnouncedStores, PoolLoads
from cluster.errors import QueueUnavailableError
from cluster.registry.aliases import KIND, AliasTable
from cluster.registry.contract import Entry
from cluster.settings import AliasSettings
from cluster.settings.registry import RegistrySettings

FAR_MS = 10**15


class FakeStore:
    """Store in memory that can be away."""

    def __init__(self) -> None:
        self.loads: list[AnnouncedLoad] = []
        self.away = self.closed = False

    async def put(self, load: AnnouncedLoad, most: int) -> Put:
        self.loads.append(load)
        return Put.STORED

    async def read(self) -> Sequence[AnnouncedLoad]:
        if self.away:
            raise QueueUnavailableError("away")
        return list(self.loads)

    async def withdraw(self, tenant: str, load_id: str) -> bool:
        raise NotImplementedError

    async def close(self) -> None:
        self.closed = True


class Site:
    """Pools `a` and `b`, their aliases, and their stores."""

    def __init__(self, **alias: Any) -> None:
        self.opened: dict[str, FakeStore] = {}
        self.stores = AnnouncedStores(self._open)
        self.aliases = AliasTable({"mix": AliasSettings(**alias)}, RegistrySettings(), lambda: ["a", "b"])
        self.pools = {name: PoolLoads(name, self.stores, self.aliases) for name in ("a", "b")}

    def _open(self, name: str) -> FakeStore:
        return self.opened.setdefault(name, FakeStore())

    async def announce(self, name: str, tenant: str = "acme", **more: Any) -> None:
        await self.stores.of(name).put(AnnouncedLoad("x", tenant, 0, FAR_MS, 10.0, **more), 9)

    async def rates(self, tenant: str = "acme") -> list[float]:
        """Return the requests per second of a tenant at both pools."""
        found = [await loads.read() for loads in self.pools.values()]
        return [sum(load.requests for load in each if load.tenant == tenant) for each in found]


def weighted(a: float, b: float) -> list[dict[str, Any]]:
    return [{"model": "a", "weight": a}, {"model": "b", "weight": b}]


async def test_an_alias_splits_by_weight_and_again_when_its_weights_change() -> None:
    site = Site(targets=weighted(3, 1))
    await site.announce("mix")
    await site.announce("a")
    assert [17.5, 2.5] == await site.rates()
    site.aliases.take(Entry(KIND, "mix", 1, 0, json.dumps({"targets": weighted(0, 1)}).encode()))
    assert [10.0, 10.0] == await site.rates()
    site.aliases.take(Entry(KIND, "mix", 2, 0, None))
    assert [17.5, 2.5] == await site.rates()


async def test_a_tenant_that_stays_with_one_target_counts_there_alone() -> None:
    site = Site(targets=weighted(1, 1), sticky="tenant")
    for number in range(8):
        await site.announce("mix", f"tenant-{number}")
    rates = [await site.rates(f"tenant-{number}") for number in range(8)]
    assert {(10.0, 0.0), (0.0, 10.0)} == {(a, b) for a, b in rates}


async def test_each_target_has_its_own_quota() -> None:
    site = Site(targets=weighted(1, 1))
    await site.announce("mix", quota_requests=4.0, quotas={"b": (1.0, 0.0)})
    [[a], [b]] = [await loads.read() for loads in site.pools.values()]
    assert ((4.0, pytest.approx(0.8)), (1.0, pytest.approx(0.2))) == (
        *((a.quota_requests, a.counts_for), (b.quota_requests, b.counts_for)),
    )
    assert b == AnnouncedLoad.from_bytes(b.to_bytes())


async def test_what_was_read_last_of_an_alias_counts_while_its_store_is_away() -> None:
    site = Site(targets=weighted(3, 1))
    await site.announce("mix")
    assert [7.5, 2.5] == await site.rates()
    site.opened["mix"].away = True
    assert [7.5, 2.5] == await site.rates()
    site.opened["a"].away = True
    with pytest.raises(QueueUnavailableError):
        await site.pools["a"].read()


async def test_stores_of_names_that_are_gone_are_closed() -> None:
    site = Site(targets=weighted(1, 1))
    await site.rates()
    await site.stores.keep({"a", "mix"})
    assert {"a": False, "b": True, "mix": False} == {name: store.closed for name, store in site.opened.items()}
