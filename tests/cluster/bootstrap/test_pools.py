"""What a removed pool leaves to a later one of its name."""

from __future__ import annotations

import asyncio
import json

import pytest

from cluster.autoscaler.operating_point import PointRecord, point_in_force
from cluster.autoscaler.redis.store import RedisControlStore
from cluster.autoscaler.store import Commit, Stored
from cluster.bootstrap.pools import open_launcher
from cluster.control.settings import operating_point
from cluster.errors import LeadershipLostError
from cluster.registry.contract import Author, Edit, Watcher
from cluster.registry.pools import KIND
from cluster.registry.redis.store import RedisRegistryStore
from cluster.registry.view import RegistryView
from cluster.settings import PoolSettings, Settings
from penstock.values.slo import ClassSlo, OperatingPoint
from penstock.values.steps import Relief
from tests.cluster.queue.backends import flush
from tests.cluster.queue.servers import Server
from tests.support.waiting import until


class Platform:
    """Ends pools at once, and notes which."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def fit_pool(self, name: str, settings: PoolSettings) -> None: ...

    async def end_pool(self, name: str) -> None:
        self.ended.append(name)


async def test_a_later_pool_of_the_name_has_its_own_operating_point_and_a_leader_that_knows_nothing(
    redis_servers: dict[str, Server],
) -> None:
    server = redis_servers["redis-7.0"]
    flush(server)
    kept, gone = (PoolSettings(engine="sim", rollout={"drain_s": 0}) for _ in range(2))
    settings = Settings(pools={"kept": kept, "gone": gone}, redis={"url": server.url, "timeout_s": 10.0})
    points = RedisControlStore(server.url, "gone", 10.0), RedisControlStore(server.url, "kept", 10.0)
    set_once = OperatingPoint(interactive=ClassSlo(itl_p95_s=0.5))
    for store in points:
        await store.set_point(PointRecord(set_once, "ops").to_bytes())
        await store.lead("a", 600.0)
        await store.commit("a", 1, Commit(b"state", 9, Relief.SHED, 10**15, b"{}", 10, ("r1",)))
        await store.store_forecast("a", 1, b"load")

    platform = Platform()
    launcher = open_launcher(settings, platform, ray=False, gpus=0)
    view = RegistryView(RedisRegistryStore(server.url, 10.0), Watcher("r", "router"))
    await launcher.begin()
    work = asyncio.create_task(launcher.run())
    await view.apply([Edit(KIND, "gone", json.dumps({"removed": True}).encode())], Author("ops"))
    await until(lambda: "gone" in platform.ended)

    later = operating_point(PoolSettings(engine="sim", slo={"interactive": {"itl_p95_s": 0.05}}))

    async def forgotten() -> bool:
        return later == point_in_force(await points[0].point(), later)

    await until(forgotten)
    assert set_once == point_in_force(await points[1].point(), later)

    async def unknown() -> bool:
        return Stored(None, None, 0, "") == await points[0].load()

    await until(unknown)
    # A decision that was on its way when the pool went does not come back.
    with pytest.raises(LeadershipLostError):
        await points[0].commit("a", 1, Commit(b"late", 9, Relief.NONE, 0, b"{}", 10))
    assert ("b", 2) == ((led := await points[0].lead("b", 10.0)).holder, led.fence)
    assert (b"load", 1) == (await points[0].forecast(), len(await points[0].decisions(10)))
    assert b"state" == (await points[1].load()).state
    work.cancel()
    await asyncio.wait([work])
    await launcher.close()
    await view.close()
    for store in points:
        await store.close()
