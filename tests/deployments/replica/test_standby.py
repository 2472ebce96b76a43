"""A replica that is told to stand by, and to wake."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from cluster.autoscaler.redis.store import RedisControlStore
from cluster.autoscaler.store import Commit
from cluster.clock import SystemClock
from cluster.errors import EngineDeadError
from cluster.models import GenerationSpec
from cluster.queue.heartbeats import ReplicaRecord
from cluster.queue.redis.queue import RedisQueue
from cluster.redis.in_process.server import InProcessRedis
from cluster.settings import load_settings
from deployments.engines.base import EngineIdentity
from deployments.engines.factory import build_engine
from deployments.engines.sim.engine import SimEngine
from deployments.replica import standby
from deployments.replica.attempts import AttemptTable, Refused
from deployments.replica.life import ReplicaPlan
from deployments.replica.replica import Replica
from deployments.replica.standby import GRACE_S, Standby
from deployments.replica.time_account import TimeAccount
from penstock.models import ReplicaState, SamplingParams
from penstock.values.steps import Relief
from tests.deployments.replica.test_output_log import Outlet
from tests.support.stack import SECRET, sim_pool
from tests.support.waiting import ended, until

POOL = "demo"

CALLS = (lambda: None, lambda error: None)
"""Heartbeat and death, which nobody looks at."""


class Host:
    """A replica with its store, and the leader that orders it about."""

    def __init__(self, folder: Path) -> None:
        flags = {
            "cluster": {"state_dir": str(folder)},
            "pools": {POOL: sim_pool()},
            "queue": {"heartbeat_s": 0.05},
        }
        settings = load_settings(flags=flags, environ={})
        self.store = InProcessRedis(SystemClock())
        plan = ReplicaPlan("r0", POOL, settings.pools[POOL], settings.queue, settings.replica)
        engine = build_engine(plan.pool_settings)
        assert isinstance(engine, SimEngine)
        self.engine = engine
        self.replica = Replica(plan, self.engine, lambda: RedisQueue(self.store, POOL), SECRET)
        self.control = RedisControlStore(self.store, POOL)
        self.queue = RedisQueue(self.store, POOL)

    async def order(self, *names: str) -> None:
        lead = await self.control.lead("leader", 600.0)
        until_ms = (await self.queue.observe()).time_ms + 600_000
        await self.control.commit("leader", lead.fence, Commit(b"", 1, Relief.NONE, until_ms, b"{}", 1, names))

    async def record(self) -> ReplicaRecord:
        [found] = (await self.queue.observe()).replicas
        return found

    async def becomes(self, state: ReplicaState, **stats: float) -> None:
        async def reached() -> bool:
            found = await self.record()
            return found.state is state and stats.items() <= found.stats.items()

        await until(reached)


@pytest_asyncio.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    made = Host(tmp_path)
    await made.replica.start()
    yield made
    await made.replica.stop(0.0)
    await made.control.close()
    await made.queue.close()


async def test_a_replica_that_is_named_sleeps_and_wakes_with_a_token(host: Host) -> None:
    await host.becomes(ReplicaState.READY, asleep=0.0)
    await host.order("r0")
    await host.becomes(ReplicaState.STANDBY, asleep=1.0)
    steps = host.engine.stats().steps
    await host.order()
    await host.becomes(ReplicaState.READY, asleep=0.0)
    assert host.engine.stats().steps > steps
    assert (await host.record()).stats["wake_s"] > 0
    assert 1 == host.replica.standby.wakes


async def test_the_time_of_a_standby_is_a_kind_of_its_own(host: Host) -> None:
    async def stood() -> float:
        return sum(line.standby.gpu_seconds for line in await host.queue.costs(0, 10**7))

    await host.becomes(ReplicaState.READY)
    assert 0 == await stood()
    await host.order("r0")

    async def counted() -> bool:
        return await stood() > 0

    await until(counted)
    assert 0 < host.replica._account.read(time.monotonic(), host.engine.stats()).standby


async def test_another_replicas_order_changes_nothing(host: Host) -> None:
    await host.order("r01", "r")
    before = host.replica.standby.replies
    await until(lambda: host.replica.standby.replies > before + 3)
    await host.becomes(ReplicaState.READY)


async def test_what_runs_ends_before_the_engine_sleeps(host: Host) -> None:
    table = host.replica.table
    spec = GenerationSpec([1, 2, 3], SamplingParams(max_tokens=10_000, ignore_eos=True))
    assert await start(table, "running", spec) is None
    await host.order("r0")
    await host.becomes(ReplicaState.STANDBY, asleep=0.0)
    before = host.replica.standby.replies
    await until(lambda: host.replica.standby.replies > before + 5)
    assert not host.replica.standby.asleep
    await table.move_all()
    await host.becomes(ReplicaState.STANDBY, asleep=1.0)


async def test_a_start_that_was_under_way_is_refused_while_the_engine_sleeps(host: Host) -> None:
    await host.order("r0")
    await host.becomes(ReplicaState.STANDBY, asleep=1.0)
    spec = GenerationSpec([1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True))
    refused = await start(host.replica.table, "late", spec)
    assert refused is not None
    assert Refused.DRAINING is refused[0]
    await host.order()
    await host.becomes(ReplicaState.READY)
    assert await start(host.replica.table, "later", spec) is None


async def test_a_replica_whose_engine_does_not_wake_is_given_up(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    await host.order("r0")
    await host.becomes(ReplicaState.STANDBY, asleep=1.0)
    host.engine.die()
    await host.order()
    await host.becomes(ReplicaState.DRAINING)
    with pytest.raises(EngineDeadError):
        await host.replica.check_health()


async def test_a_wake_up_that_takes_too_long_is_given_up(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    await host.order("r0")
    await host.becomes(ReplicaState.STANDBY, asleep=1.0)
    monkeypatch.setattr(standby, "WAKE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(host.engine, "wake", asyncio.Event().wait)
    await host.order()
    await host.becomes(ReplicaState.DRAINING)
    with pytest.raises(EngineDeadError, match="the engine did not wake up within 0 s"):
        await host.replica.check_health()


async def test_a_standby_that_is_stopped_does_not_wake(host: Host) -> None:
    await host.order("r0")
    await host.becomes(ReplicaState.STANDBY, asleep=1.0)
    await host.replica.stop(1.0)
    assert () == (await host.queue.observe()).replicas
    assert 0 == host.replica.standby.wakes


@pytest.mark.parametrize(("sleeps", "drains"), [(True, True), (False, False)])
async def test_an_engine_that_can_not_sleep_stands_by_as_it_is(sleeps: bool, drains: bool) -> None:
    pool = load_settings(flags={"pools": {POOL: sim_pool()}}, environ={}).pools[POOL]
    engine = SimEngine(pool, None)
    identity: EngineIdentity = replace(await engine.start(), sleeps=sleeps)
    table = table_of(engine, identity)
    one = Standby(engine, identity, table, *CALLS, account=TimeAccount(0.0, 1, 0.0))
    # What its pool's autoscaler is told before the first wake-up: nothing, or that it takes no time.
    assert one.report() == ({"asleep": 0.0} if sleeps else {"wake_s": 0.0})
    task = asyncio.create_task(one.run())
    for _ in range(5):
        one.hear(True, 0.0)
        await asyncio.sleep(0)
    await until(lambda: one.resting and one.asleep is sleeps)
    assert drains is table.draining
    one.hear(False, 0.0)
    await until(lambda: not one.resting)
    assert not table.draining
    assert one.wake_s is not None
    assert (one.wake_s > 0) is sleeps
    await ended(task)
    await engine.close()


async def test_without_an_order_in_force_the_last_one_holds_for_a_while() -> None:
    pool = load_settings(flags={"pools": {POOL: sim_pool()}}, environ={}).pools[POOL]
    engine = SimEngine(pool, None)
    identity = await engine.start()
    table = table_of(engine, identity)
    one = Standby(engine, identity, table, *CALLS, account=TimeAccount(0.0, 1, 0.0))
    one.hear(None, 0.0)
    assert not one.ordered
    one.hear(True, 10.0)
    one.hear(None, 10.0 + GRACE_S)
    assert one.ordered
    one.hear(None, 10.1 + GRACE_S)
    assert not one.ordered
    await engine.close()


async def test_a_standby_whose_store_is_away_wakes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = load_settings(flags={"pools": {POOL: sim_pool()}}, environ={}).pools[POOL]
    engine = SimEngine(pool, None)
    identity = await engine.start()
    one = Standby(
        engine, identity, table_of(engine, identity), lambda: None, lambda error: None, account=TimeAccount(0.0, 1, 0.0)
    )
    monkeypatch.setattr(standby, "GRACE_S", 0.05)
    task = asyncio.create_task(one.run())
    one.hear(True, 0.0)
    # No heartbeat is answered from here on.
    await until(lambda: one.wakes == 1 and not one.resting)
    assert not one.ordered
    await ended(task)
    await engine.close()


async def start(table: AttemptTable, name: str, spec: GenerationSpec) -> tuple[Refused, str] | None:
    return await table.start(name, "1", spec, Outlet(), 1)


def table_of(engine: SimEngine, identity: EngineIdentity) -> AttemptTable:
    return AttemptTable(
        engine, identity.windows, SystemClock(), attach_grace_s=1.0, retained_bytes=1, on_end=lambda log: None
    )
