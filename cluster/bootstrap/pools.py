"""What a local cluster does for pools that come and go while it runs, with Ray and without."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cluster.autoscaler.operating_point import PointRecord
from cluster.autoscaler.redis.store import RedisControlStore
from cluster.queue.cells.queue import CellQueue
from cluster.queue.redis.queue import RedisQueue
from cluster.queue.settings import limits_from
from cluster.registry.launcher import Platform, PoolLauncher
from cluster.registry.redis.store import RedisRegistryStore
from cluster.rollout.book import RolloutBook
from cluster.rollout.redis.store import RedisRolloutStore
from cluster.settings import PoolSettings, Settings, TenantSettings


def open_launcher(settings: Settings, platform: Platform, *, ray: bool, gpus: int) -> PoolLauncher:
    """Open the launcher of a cluster's pools. `ray`: whether Ray Serve hosts the replicas, with so many GPUs."""
    url, timeout_s, limits = settings.redis.url, settings.redis.timeout_s, limits_from(settings.queue)

    async def forget(pool: str) -> None:
        # The record of its roll-out would be in force again in a later pool of this name with these settings.
        book = RolloutBook(pool, RedisRolloutStore(url, pool, timeout_s))
        # Its operating point would be, whatever the SLO and the price of the later one. Its leader's state tells of
        # replicas that may have had another model: how long they start, how full they may be, how many to hold.
        store = RedisControlStore(url, pool, timeout_s)
        try:
            await book.change(lambda found, _: found and replace(found, base=""))
            if await store.point() is not None:
                await store.set_point(PointRecord(None).to_bytes())
            await store.forget()
        finally:
            await book.close()
            await store.close()

    def open_queue(pool: str) -> CellQueue:
        return CellQueue(pool, lambda name: RedisQueue(url, name, limits, timeout_s))

    store = RedisRegistryStore(url, timeout_s)
    parts = settings.pools, store, platform, open_queue, forget
    return PoolLauncher(*parts, ray=ray, gpus=gpus, fixed=settings.registry)


def settings_with(settings: Settings, pools: Mapping[str, PoolSettings]) -> Settings:
    """Return the settings of replicas and autoscaler, with the pools that run. They have no use for aliases and
    tenants, and these may name pools that do not run.
    """
    unused = {"aliases": {}, "tenants": {}, "default_tenant": TenantSettings()}
    return settings.model_copy(update={"pools": dict(pools), **unused})


def with_pool(pools: Mapping[str, PoolSettings], name: str, settings: PoolSettings | None) -> dict[str, PoolSettings]:
    """Return pools with one as it is now; without it for None."""
    others = {each: pool for each, pool in pools.items() if each != name}
    return others if settings is None else {**others, name: settings}


def write_settings(path: Path, settings: Settings) -> None:
    """Write settings for other processes, which read the whole old file or the whole new one."""
    partial = path.with_suffix(".partial")
    # Redis' URL may contain a password.
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(settings.model_dump_json())
    partial.replace(path)
