"""Announced load in its store: kept until it is over, bounded, and each tenant's own."""

from __future__ import annotations

from dataclasses import replace

from cluster.announced.contract import Put
from cluster.announced.load import AnnouncedLoad
from cluster.announced.redis.store import announced_key
from tests.cluster.autoscaler.conftest import Backend


def load(now_ms: int, name: str = "a", tenant: str = "acme", **fields: float) -> AnnouncedLoad:
    return AnnouncedLoad(name, tenant, now_ms + 60_000, now_ms + 120_000, requests=2.5, **fields)


async def test_what_is_announced_is_read_in_order_of_its_beginning(backend: Backend) -> None:
    store, now = backend.announced(), backend.clock.wall_ms()
    first = load(now, "z", prompt_tokens=512.0, quota_requests=1.5)
    second = replace(load(now, "a", "beta"), starts_ms=now + 90_000)
    assert [Put.STORED] * 2 == [await store.put(each, 4) for each in (second, first)]

    assert [first, second] == await backend.announced().read()


async def test_it_is_gone_when_its_time_is_over(backend: Backend) -> None:
    store, now = backend.announced(), backend.clock.wall_ms()
    await store.put(load(now), 1)
    assert Put.TENANT_FULL is await store.put(load(now, "b"), 1)
    backend.clock.advance(120.0)
    assert [] == await store.read()
    assert Put.STORED is await store.put(load(backend.clock.wall_ms(), "b"), 1)


async def test_the_same_id_replaces_and_counts_once(backend: Backend) -> None:
    store, now = backend.announced(), backend.clock.wall_ms()
    await store.put(load(now), 1)
    again = replace(load(now), requests=9.0)
    assert Put.STORED is await store.put(again, 1)
    assert [again] == await store.read()


async def test_a_full_tenant_stops_no_other_whose_name_begins_alike(backend: Backend) -> None:
    store, now = backend.announced(), backend.clock.wall_ms()
    await store.put(load(now, tenant="acme-2"), 1)
    assert Put.STORED is await store.put(load(now, tenant="acme"), 1)
    assert Put.TENANT_FULL is await store.put(load(now, "b", tenant="acme"), 1)


async def test_only_its_tenants_announcement_is_withdrawn(backend: Backend) -> None:
    store, now = backend.announced(), backend.clock.wall_ms()
    await store.put(load(now), 1)
    assert not await store.withdraw("beta", "a")
    assert await store.withdraw("acme", "a")
    assert not await store.withdraw("acme", "a")
    assert [] == await store.read()


async def test_a_record_that_nobody_can_read_hides_no_other(local: Backend) -> None:
    store, now = local.announced(), local.clock.wall_ms()
    await store.put(load(now), 4)
    local.memory.execute("HSET", announced_key("demo"), "x/y", f"{now + 60_000} of another release")
    assert ["a"] == [each.id for each in await store.read()]
