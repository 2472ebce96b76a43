"""An autoscaler that follows the pools of the registry."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cluster.autoscaler import autoscaler as module
from cluster.autoscaler.actuator import Actual, Actuator
from cluster.autoscaler.autoscaler import Autoscaler, AutoscalerStores
from cluster.autoscaler.metrics import AutoscalerMetrics
from cluster.autoscaler.redis.store import RedisControlStore
from cluster.autoscaler.scaler import PoolScaler
from cluster.control.settings import ControlMode
from cluster.queue.redis.queue import RedisQueue
from cluster.registry.contract import Author, Edit, Watcher
from cluster.registry.pools import KIND
from cluster.registry.redis.store import RedisRegistryStore
from cluster.registry.view import RegistryView
from cluster.settings import PoolSettings, Settings, load_settings
from cluster.trust.secret import ClusterSecret
from tests.cluster.autoscaler.conftest import Backend
from tests.support.waiting import until

POOL: dict[str, Any] = {"engine": "sim", "autoscale": {"mode": "active", "max_replicas": 4}}


class Still:
    """A platform that keeps what it has."""

    async def look(self, pool: str) -> Actual:
        return Actual(1, 1)

    async def scale(self, pool: str, replicas: int) -> None:
        pass


def cluster(**sections: Any) -> Settings:
    flags = {"pools": {"demo": POOL}, "autoscaler": {"port": 0, "tick_s": 0.1, "lease_s": 1.0}, **sections}
    return load_settings(flags=flags, environ={})


@contextlib.asynccontextmanager
async def following(
    local: Backend, settings: Settings, platform: Actuator | None = None
) -> AsyncIterator[tuple[Autoscaler, RegistryView]]:
    redis = local.memory
    stores = AutoscalerStores(
        lambda pool: RedisQueue(redis, pool),
        lambda pool: RedisControlStore(redis, pool, clock=local.clock),
        registry=lambda: RedisRegistryStore(redis, clock=local.clock),
    )
    admin = RegistryView(RedisRegistryStore(redis, clock=local.clock), Watcher("router", "router"))
    autoscaler = Autoscaler(settings, ClusterSecret(b"0" * 32), stores, platform if platform is not None else Still())
    await autoscaler.start()
    try:
        yield autoscaler, admin
    finally:
        await autoscaler.stop()
        await admin.close()


async def put(admin: RegistryView, name: str, settings: dict[str, Any] | None) -> int:
    value = {"removed": True} if settings is None else {"settings": settings}
    return await admin.apply([Edit(KIND, name, json.dumps(value).encode())], Author("ops"))


async def test_settings_change_and_the_leader_stays(local: Backend) -> None:
    async with following(local, cluster()) as (autoscaler, admin):
        scaler = autoscaler.scalers["demo"]
        await until(lambda: scaler.record is not None)
        version = await put(admin, "demo", {**POOL, "autoscale": {"mode": "advisory", "max_replicas": 9}})
        assert [] == await admin.behind(version, 20.0)
        await until(lambda: scaler.mode is ControlMode.ADVISORY)
        assert (9, 1) == (scaler._settings.bounds.largest, scaler.tally.took_over)
        await until(lambda: scaler.record is not None and scaler.record.mode is ControlMode.ADVISORY)


async def test_pools_come_and_go_and_their_leases_go_with_them(local: Backend) -> None:
    async with following(local, cluster()) as (autoscaler, admin):
        await put(admin, "more", POOL)
        await until(lambda: "more" in autoscaler.scalers and autoscaler.scalers["more"].leading)
        await put(admin, "demo", {**POOL, "autoscale": {}})
        await put(admin, "more", None)
        await until(lambda: autoscaler.scalers == {})
        assert autoscaler.ready()
        for name in ("demo", "more"):
            store = RedisControlStore(local.memory, name, clock=local.clock)
            assert "next" == (await store.lead("next", 1.0)).holder
            await store.close()
        await put(admin, "demo", POOL)
        await until(lambda: "demo" in autoscaler.scalers)


async def test_a_fixed_pool_stays_as_its_settings_say(local: Backend) -> None:
    async with following(local, cluster(registry={"fixed": ["pool/demo"]})) as (autoscaler, admin):
        version = await put(admin, "demo", None)
        assert [] == await admin.behind(version, 20.0)
        await put(admin, "other", POOL)
        await until(lambda: "other" in autoscaler.scalers)
        assert "demo" in autoscaler.scalers


class Late(Still):
    """A platform that takes numbers when it may."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may = asyncio.Event()
        self.taken: list[int] = []

    async def scale(self, pool: str, replicas: int) -> None:
        self.asked.set()
        await self.may.wait()
        self.taken.append(replicas)


@pytest.mark.parametrize("mode", ["off", "advisory"])
async def test_a_change_is_in_force_only_once_no_older_number_is_on_its_way(local: Backend, mode: str) -> None:
    platform = Late()
    scaled = {**POOL, "autoscale": {"mode": "active", "min_replicas": 3, "max_replicas": 4}}
    async with following(local, cluster(pools={"demo": scaled}), platform) as (autoscaler, admin):
        await until(platform.asked.is_set)
        version = await put(admin, "demo", {**POOL, "autoscale": {"mode": mode, "max_replicas": 4}})
        await until(lambda: autoscaler._view is not None and autoscaler._view.version >= version)
        assert [autoscaler.holder] == await admin.behind(version, 1.5)
        platform.may.set()
        assert [] == await admin.behind(version, 20.0)
        # A number that timed out and was sent again is the same one.
        sent = list(platform.taken)
        assert {3} == set(sent)
        later = await put(admin, "other", POOL)
        assert [] == await admin.behind(later, 20.0)
        assert sent == platform.taken


async def test_a_change_that_fails_is_tried_again_and_later_ones_come_into_force(
    local: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    change, tries = PoolScaler.change, 0

    def fails_at_first(scaler: PoolScaler, settings: PoolSettings) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise RuntimeError("planted")
        change(scaler, settings)

    monkeypatch.setattr(PoolScaler, "change", fails_at_first)
    async with following(local, cluster()) as (autoscaler, admin):
        await until(lambda: autoscaler._view is not None and autoscaler._view.known.is_set())
        version = await put(admin, "demo", {**POOL, "autoscale": {"mode": "advisory", "max_replicas": 9}})
        assert [] == await admin.behind(version, 20.0)
        assert ControlMode.ADVISORY is autoscaler.scalers["demo"].mode
        await put(admin, "demo", {**POOL, "autoscale": {}})
        await until(lambda: autoscaler.scalers == {})


async def test_threads_that_go_through_the_scalers_are_not_disturbed_by_pools_that_come_and_go(local: Backend) -> None:
    async with following(local, cluster()) as (autoscaler, admin):
        registry = AutoscalerMetrics(lambda: autoscaler.scalers).registry
        under_way = iter(autoscaler.scalers.items())
        await put(admin, "more", POOL)
        await until(lambda: "more" in autoscaler.scalers)
        assert ["demo"] == [name for name, _ in under_way]
        assert registry.get_sample_value("penstock_autoscaler_leading", {"pool": "more"}) is not None
        assert 2 == registry.get_sample_value("penstock_autoscaler_pools")
        under_way = iter(autoscaler.scalers.items())
        await put(admin, "more", None)
        await until(lambda: "more" not in autoscaler.scalers)
        assert ["demo", "more"] == [name for name, _ in under_way]
        assert 1 == registry.get_sample_value("penstock_autoscaler_pools")


async def test_no_number_is_decided_under_settings_that_are_older_than_the_entries(
    local: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may = asyncio.Event(), asyncio.Event()
    look = RedisRegistryStore.look

    async def slow(store: RedisRegistryStore, watcher: Watcher, *rest: Any) -> Any:
        if watcher.kind == "autoscaler":
            asked.set()
            await may.wait()
        return await look(store, watcher, *rest)

    monkeypatch.setattr(RedisRegistryStore, "look", slow)
    platform = Late()
    scaled = {**POOL, "autoscale": {"mode": "active", "min_replicas": 3, "max_replicas": 4}}
    async with following(local, cluster(pools={"demo": scaled}), platform) as (autoscaler, admin):
        await put(admin, "demo", {**POOL, "autoscale": {"mode": "advisory", "min_replicas": 3, "max_replicas": 4}})
        await until(asked.is_set)
        # Enough turns for a whole decision.
        for _ in range(300):
            await asyncio.sleep(0)
        may.set()
        scaler = autoscaler.scalers["demo"]
        await until(lambda: scaler.record is not None)
        assert scaler.record is not None
        assert ControlMode.ADVISORY is scaler.record.mode
        assert not platform.asked.is_set()
