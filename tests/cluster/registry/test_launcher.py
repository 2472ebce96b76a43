"""The launcher over a registry in memory, with a platform that fails on demand."""

from __future__ import annotations

import asyncio
import json

import pytest

from cluster.clock import ManualClock
from cluster.errors import BootstrapError
from cluster.queue.entries import QueueEntry
from cluster.queue.heartbeats import RouterBeat
from cluster.queue.redis.queue import RedisQueue
from cluster.queue.settings import limits_from
from cluster.redis.in_process.server import InProcessRedis
from cluster.registry import launcher as launchers
from cluster.registry.contract import Author, Edit, Watcher
from cluster.registry.launcher import PoolLauncher
from cluster.registry.pools import KIND, PoolEntry, PoolReport, PoolState, digest_of, launcher_of
from cluster.registry.redis.store import RedisRegistryStore
from cluster.registry.view import RegistryView
from cluster.settings import PoolSettings, QueueSettings
from cluster.settings.rollout import RolloutSettings
from penstock.models import RequestClass
from tests.support.waiting import until

ONE = PoolSettings(engine="sim", rollout={"drain_s": 0})
OTHER = PoolSettings(engine="sim", rollout={"drain_s": 0}, sim={"base_ms": 3.0})
UNTIL_TOLD = 1_000_000
"""Failures of a platform that a test ends when it has seen what they lead to."""


class Platform:
    """Notes what it is told, and fails as often as it should."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.failures = 0

    async def fit_pool(self, name: str, settings: PoolSettings) -> None:
        self._do(f"fit {name} {settings.sim.base_ms:g}")

    async def end_pool(self, name: str) -> None:
        self._do(f"end {name}")

    def _do(self, what: str) -> None:
        if self.failures:
            self.failures -= 1
            raise BootstrapError("serve", "does not answer")
        self.told.append(what)


class Cluster:
    """A launcher, and a router's view of it."""

    def __init__(self, platform: Platform, declared: dict[str, PoolSettings]) -> None:
        self.clock = clock = ManualClock()
        self.declared = declared
        redis = InProcessRedis(clock)
        self.admin = RegistryView(RedisRegistryStore(redis, clock=clock), Watcher("r", "router"))
        self._redis = redis
        self.forgotten: list[str] = []
        self.launcher = PoolLauncher(
            declared,
            RedisRegistryStore(redis, clock=clock),
            platform,
            self.queue,
            self._forget,
        )

    def queue(self, pool: str) -> RedisQueue:
        return RedisQueue(self._redis, pool, limits_from(QueueSettings()), clock=self.clock)

    async def _forget(self, pool: str) -> None:
        self.forgotten.append(pool)

    async def put(self, name: str, settings: PoolSettings | None, base: PoolSettings | None = None) -> None:
        content = PoolEntry(settings=settings, removed=settings is None, base=digest_of(base))
        value = content.model_dump_json(exclude_unset=True, exclude_none=True).encode()
        await self.admin.apply([Edit(KIND, name, value)], Author("ops"))

    async def report(self) -> dict[str, PoolReport]:
        await self.admin.refresh()
        found = launcher_of(await self.admin.watchers())
        return dict(found.pools) if found is not None else {}

    async def is_told(self, name: str, state: PoolState) -> None:
        async def told() -> bool:
            entry, report = self.admin.get(KIND, name), (await self.report()).get(name)
            version = entry.version if entry is not None else 0
            return report is not None and report.state is state and report.version == version

        await until(told)

    async def __aenter__(self) -> Cluster:
        await self.launcher.begin()
        self._running = asyncio.create_task(self.launcher.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self.launcher.close()
        await self.admin.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "RETRY_S", 0.01)
    monkeypatch.setattr(launchers, "LOOK_S", 0.01)


async def test_what_was_removed_before_the_start_is_ended_again_for_its_launcher_may_have_died() -> None:
    cluster = Cluster(platform := Platform(), {"a": ONE, "b": ONE})
    await cluster.put("b", None, base=ONE)
    platform.failures = UNTIL_TOLD
    async with cluster:
        await cluster.is_told("a", PoolState.SERVING)
        await cluster.is_told("b", PoolState.DRAINING)
        await until(lambda: platform.failures < UNTIL_TOLD - 1)
        platform.failures = 0
        await cluster.is_told("b", PoolState.GONE)
    assert ["end b"] == platform.told
    assert ["b"] == cluster.forgotten


async def test_a_pool_that_comes_back_waits_for_the_end_that_a_dead_launcher_had_begun() -> None:
    cluster = Cluster(platform := Platform(), {"a": ONE})
    await cluster.put("more", None)
    platform.failures = UNTIL_TOLD
    async with cluster:
        await cluster.is_told("more", PoolState.DRAINING)
        await cluster.put("more", OTHER)
        platform.failures = 0
        await cluster.is_told("more", PoolState.SERVING)
    assert ["end more", "fit more 3"] == platform.told


async def test_what_dead_routers_left_in_a_removed_pool_does_not_hold_up_its_end() -> None:
    cluster = Cluster(Platform(), {"a": ONE, "b": ONE.model_copy(update={"rollout": RolloutSettings(drain_s=3600)})})
    queue = cluster.queue("b")
    await queue.heartbeat_router(RouterBeat("dead", ()))
    await queue.submit("dead", QueueEntry("q", "a", "acme", RequestClass.STANDARD, 1, 1, 2))
    await cluster.put("b", None, base=cluster.declared["b"])
    async with cluster:
        await cluster.is_told("b", PoolState.DRAINING)

        async def empty() -> bool:
            # A lease, then the grace in which another router may take it up. A longer step would be a gap.
            cluster.clock.advance(0.5)
            return (await queue.observe()).waiting == (0, 0, 0)

        await until(empty)
        await cluster.is_told("b", PoolState.GONE)
    await queue.close()


async def test_pools_of_the_registry_start_behind_those_of_the_settings_and_are_tried_again() -> None:
    cluster = Cluster(platform := Platform(), {"a": ONE})
    await cluster.put("more", ONE)
    platform.failures = 2
    async with cluster:
        await cluster.is_told("more", PoolState.SERVING)
    assert [f"fit more {ONE.sim.base_ms:g}"] == platform.told


async def test_an_end_that_fails_is_tried_again_and_the_pool_can_start_after_it() -> None:
    async with Cluster(platform := Platform(), {"a": ONE}) as cluster:
        await cluster.put("more", ONE)
        await cluster.is_told("more", PoolState.SERVING)
        platform.failures = 3
        await cluster.put("more", None)
        await cluster.is_told("more", PoolState.GONE)
        assert ["more"] == cluster.forgotten
        await cluster.put("more", OTHER)
        await cluster.is_told("more", PoolState.SERVING)
    assert [f"fit more {ONE.sim.base_ms:g}", "end more", "fit more 3"] == platform.told


async def test_pools_start_again_after_their_platform_and_are_not_called_serving_before() -> None:
    async with Cluster(platform := Platform(), {"a": ONE}) as cluster:
        await cluster.put("more", OTHER)
        await cluster.is_told("more", PoolState.SERVING)
        cluster.launcher.platform_lost()
        await cluster.is_told("a", PoolState.STARTING)
        await cluster.is_told("more", PoolState.STARTING)
        platform.failures = 1
        platform.told.clear()
        await cluster.launcher.start_again()
        await cluster.is_told("a", PoolState.SERVING)
        await cluster.is_told("more", PoolState.SERVING)
    assert [f"fit a {ONE.sim.base_ms:g}", "fit more 3"] == sorted(platform.told)


async def test_a_pool_that_came_again_with_other_settings_has_none_of_its_old_replicas() -> None:
    async with Cluster(platform := Platform(), {"a": ONE}) as cluster:
        await cluster.put("more", ONE)
        await cluster.is_told("more", PoolState.SERVING)
        await cluster.put("more", OTHER)
        await until(lambda: len(platform.told) == 3)
        await cluster.put("more", OTHER.model_copy(update={"replicas": 2}))
        await until(lambda: len(platform.told) == 4)
    assert [f"fit more {ONE.sim.base_ms:g}", "end more", "fit more 3", "fit more 3"] == platform.told


async def test_a_pool_whose_entry_a_newer_release_wrote_is_not_ended_at_a_start() -> None:
    cluster = Cluster(platform := Platform(), {"a": ONE})
    await cluster.put("gone", None)
    newer = json.dumps({"settings": {"engine": "sim", "of_a_newer_release": 1}}).encode()
    await cluster.admin.apply([Edit(KIND, "more", newer)], Author("ops"))
    async with cluster:
        await cluster.is_told("gone", PoolState.GONE)
        assert {"a", "gone"} == set(await cluster.report())
    assert ["end gone"] == platform.told
    assert ["gone"] == cluster.forgotten


class Slow(Platform):
    """A platform whose starts, once they are broken off, take until they may end."""

    def __init__(self) -> None:
        super().__init__()
        self.slow: set[str] = set()
        self.broken_off = asyncio.Event()
        self.may_end = asyncio.Event()

    async def fit_pool(self, name: str, settings: PoolSettings) -> None:
        if name in self.slow:
            self.slow.discard(name)
            try:
                await asyncio.Event().wait()
            finally:
                self.broken_off.set()
                await self.may_end.wait()
        await super().fit_pool(name, settings)


async def test_a_pool_that_is_removed_while_all_start_again_gets_no_replicas() -> None:
    async with Cluster(platform := Slow(), {"a": ONE}) as cluster:
        await cluster.put("more", ONE)
        await cluster.is_told("more", PoolState.SERVING)
        platform.slow = {"a"}
        await cluster.put("a", ONE.model_copy(update={"replicas": 2}))
        await until(lambda: not platform.slow)
        again = asyncio.create_task(cluster.launcher.start_again())
        await until(platform.broken_off.is_set)
        await cluster.put("more", None)
        # The launcher's own loop may wait for its turn with what it read before the removal.
        await cluster.launcher._view.refresh()
        # Without a turn of its own the removal would be looked at now, in the middle of the restart.
        for _ in range(20):
            await asyncio.sleep(launchers.LOOK_S)
        platform.may_end.set()
        await again
        await cluster.is_told("more", PoolState.GONE)
    assert "end more" == [each for each in platform.told if " more" in each][-1]


@pytest.mark.parametrize("mode", ["off", "advisory"])
async def test_a_number_is_set_only_after_the_autoscalers_have_let_go_of_the_pool(mode: str) -> None:
    async with Cluster(platform := Platform(), {"a": ONE}) as cluster:
        await cluster.is_told("a", PoolState.SERVING)
        store = RedisRegistryStore(cluster._redis, clock=cluster.clock)
        autoscaler = RegistryView(store, Watcher("autoscaler", "autoscaler"))
        for _ in range(2):
            await autoscaler.refresh()
        scaled = {"autoscale": {"mode": "active", "max_replicas": 4}}
        await cluster.put("a", ONE.model_validate({**ONE.model_dump(), **scaled}))
        await cluster.is_told("a", PoolState.SERVING)
        assert 1 == len(platform.told)
        fixed = {"autoscale": {"mode": mode, "max_replicas": 4}}
        await cluster.put("a", ONE.model_validate({**ONE.model_dump(), **fixed}))
        await cluster.is_told("a", PoolState.STARTING)
        assert 1 == len(platform.told)
        for _ in range(2):
            await autoscaler.refresh()
        await cluster.is_told("a", PoolState.SERVING)
        assert 2 == len(platform.told)
        await autoscaler.close()


async def test_an_autoscaler_that_is_never_done_holds_a_pool_up_only_so_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launchers, "SETTLE_S", 0.05)
    async with Cluster(platform := Platform(), {"a": ONE}) as cluster:
        store = RedisRegistryStore(cluster._redis, clock=cluster.clock)
        autoscaler = RegistryView(store, Watcher("autoscaler", "autoscaler"))
        await autoscaler.refresh()
        await cluster.put("a", ONE.model_copy(update={"replicas": 2}))
        await cluster.is_told("a", PoolState.SERVING)
        await autoscaler.close()
    assert 1 == len(platform.told)
    assert "launcher.autoscaler_late" in caplog.text
