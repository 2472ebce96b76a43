"""An autoscaler that follows the pools of the registry."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from cluster.autoscaler.actuator import Actual
from cluster.autoscaler.autoscaler import Autoscaler, AutoscalerStores
from cluster.autoscaler.redis.store import RedisControlStore
from cluster.control.settings import ControlMode
from cluster.queue.redis.queue import RedisQueue
from cluster.registry.contract import Author, Edit, Watcher
from cluster.registry.pools import KIND
from cluster.registry.redis.store import RedisRegistryStore
from cluster.registry.view import RegistryView
from cluster.settings import Settings, load_settings
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
async def following(local: Backend, settings: Settings) -> AsyncIterator[tuple[Autoscaler, RegistryView]]:
    redis = local.memory
    stores = AutoscalerStores(
        lambda pool: RedisQueue(redis, pool),
        lambda pool: RedisControlStore(redis, pool, clock=local.clock),
        registry=lambda: RedisRegistryStore(redis, clock=local.clock),
    )
    admin = RegistryView(RedisRegistryStore(redis, clock=local.clock), Watcher("router", "router"))
    autoscaler = Autoscaler(settings, ClusterSecret(b"0" * 32), stores, Still())
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
