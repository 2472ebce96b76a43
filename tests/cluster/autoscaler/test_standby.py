"""Standbys from the leader's decision to the replicas that it names, and back."""

from __future__ import annotations

import pytest

from cluster.autoscaler.cell_standbys import CellStandbys
from cluster.autoscaler.redis.store import RedisControlStore
from cluster.autoscaler.store import Commit
from cluster.models import Windows
from cluster.queue.cells.names import cell_name
from cluster.queue.heartbeats import ReplicaBeat, RouterBeat
from cluster.queue.redis.queue import RedisQueue
from cluster.rollout.changes import base_of, rules_of
from cluster.rollout.record import Revision, Rollout
from penstock.models import ReplicaState
from penstock.values.steps import Relief
from tests.cluster.autoscaler.conftest import Backend
from tests.cluster.autoscaler.scaled_pool import TICK_S, Site, both
from tests.cluster.queue.backends import POOL, entry

ROOM = Windows(sequences=4, kv_tokens=10**6, prefill_tokens=10**6)


@pytest.mark.parametrize("backend", ["in-process", "redis-7.0"], indirect=True)
async def test_an_order_reaches_the_replica_it_names_until_its_time_is_over(backend: Backend) -> None:
    store, queue = backend.store(), backend.queue()

    async def heard(name: str) -> bool | None:
        reply = await queue.heartbeat_replica(ReplicaBeat(name, b"", ReplicaState.READY, ROOM, ()))
        found: bool | None = reply.standby
        return found

    assert [None, None] == [await heard("r1"), await heard("r10")]
    await store.lead("a", 60)
    until_ms = (await queue.observe()).time_ms + 45_000
    await store.commit("a", 1, Commit(b"", 3, Relief.NONE, until_ms, b"{}", 1, ("r10", "r2")))
    assert [False, True, True] == [await heard("r1"), await heard("r10"), await heard("r2")]
    await store.commit("a", 1, Commit(b"", 3, Relief.NONE, until_ms, b"{}", 1))
    assert [False, False] == [await heard("r1"), await heard("r10")]
    backend.clock.advance(46)
    assert [None, None] == [await heard("r1"), await heard("r10")]


@pytest.mark.parametrize("backend", ["in-process", "redis-7.0"], indirect=True)
async def test_a_standby_gets_no_request_and_one_that_wakes_does(backend: Backend) -> None:
    queue = backend.queue()

    async def beat(state: ReplicaState) -> None:
        await queue.heartbeat_replica(ReplicaBeat("r1", b"", state, ROOM, ()))
        await queue.heartbeat_router(RouterBeat("A", ("r1",)))

    for _ in range(8):
        await beat(ReplicaState.STANDBY)
        backend.clock.advance(1)
    assert (await queue.submit("A", entry("e1"))).grant is None
    await beat(ReplicaState.STANDBY)
    assert () == (await queue.collect("A")).grants
    await beat(ReplicaState.READY)
    assert ["e1"] == [grant.request_id for grant in (await queue.collect("A")).grants]


@both
async def test_replicas_stand_by_before_they_go_and_wake_before_others_start(backend: Backend) -> None:
    site = Site(backend, standby=4, standby_price=0.3, cold_start_s=120.0)
    site.cold_s = 120.0
    scaler = site.scaler()
    await site.run(scaler, 3)
    busy = await site.run(scaler, 24, rate=60.0)
    top = busy[-1].replicas
    assert top >= 3
    quiet = await site.run(scaler, 30)
    fewer = quiet[-1]
    started = max(site.platform.told)

    assert fewer.replicas < top
    assert top == fewer.replicas + fewer.standby == site.platform.target
    assert fewer.standby == len(site.standing) == fewer.standing_by
    # The newest sleep: the platform removes these first.
    assert set(site.ready[fewer.replicas :]) == site.standing
    assert fewer.before == fewer.replicas

    again = await site.run(scaler, 16, rate=60.0)
    assert started == max(site.platform.told)
    assert again[-1].replicas == again[-1].ready > fewer.replicas


@both
async def test_a_standby_that_starts_or_starts_anew_is_not_taken_for_a_replica_that_serves(backend: Backend) -> None:
    """It takes work until it is told to stand by. Its pool must not keep it for that, and start the next standby."""
    site = Site(backend, standby=2, standby_least=1)
    scaler = site.scaler()
    made = await site.run(scaler, 8)
    assert site.standing
    site.standing.remove(site.ready.pop())
    made += await site.run(scaler, 8)
    assert {(1, 1)} == {(one.replicas, one.standby) for one in made}
    assert [2] == site.platform.told
    assert [*site.standing] == site.ready[1:]


async def test_the_next_leader_keeps_the_standbys(local: Backend) -> None:
    site = Site(local, 6, standby=4, standby_price=0.1)
    first = site.scaler("a")
    await site.run(first, 40)
    before = set(site.standing)
    assert before
    await first.resign()
    [made] = await site.run(site.scaler("b"), 1)
    assert made.standby >= len(before)
    assert before <= site.standing


async def test_all_wake_while_nobody_leads(local: Backend) -> None:
    site = Site(local, 6, standby=4, standby_price=0.1)
    scaler = site.scaler()
    await site.run(scaler, 40)
    assert site.standing
    await site.live(4 * TICK_S)
    assert not site.standing


@pytest.mark.parametrize("same", [True, False])
async def test_standbys_that_woke_without_a_leader_and_work_are_not_taken_for_new_ones(
    local: Backend, same: bool
) -> None:
    """Whoever leads next must not remove what carries the load by now."""
    site = Site(local, 16, max_replicas=16, standby=15, standby_price=0.02)
    scaler = site.scaler("a")
    before = (await site.run(scaler, 300))[-1]
    assert (before.replicas, before.standby) == (1, 15)
    await site.live(60.0)
    await site.live(90.0, rate=100.0)
    assert not site.standing
    if not same:
        scaler = site.scaler("b")
    [first] = await site.run(scaler, 1, rate=100.0)
    assert first.ready == 16
    assert first.replicas > 6
    assert first.relief is Relief.NONE


async def test_a_store_that_lost_everything_has_its_standbys_back_after_a_tick(local: Backend) -> None:
    site = Site(local, 6, standby=4, standby_price=0.1)
    scaler = site.scaler()
    made = await site.run(scaler, 40)
    local.forget()
    [again] = await site.run(scaler, 1)
    assert made[-1].standby == again.standby > 0
    await site.live(3.0)
    assert again.standby == len(site.standing)


async def test_an_advisory_decision_sends_nobody_to_sleep(local: Backend) -> None:
    site = Site(local, 6, mode="advisory", standby=4, standby_price=0.1)
    made = await site.run(site.scaler(), 40)
    assert made[-1].replicas < 6
    assert {0} == {one.standby for one in made}
    assert not site.standing


async def test_replicas_of_other_cells_get_their_orders_too(local: Backend) -> None:
    """The first cell has them with the decision."""
    other = RedisControlStore(local.memory, cell_name(POOL, 1), clock=local.clock)
    local.opened.append(other)
    queue = RedisQueue(local.memory, cell_name(POOL, 1))
    opened: list[str] = []

    def open_store(name: str) -> RedisControlStore:
        opened.append(name)
        return other

    async def heard() -> bool | None:
        return (await queue.heartbeat_replica(ReplicaBeat("r2", b"", ReplicaState.READY, ROOM, ()))).standby

    cells = CellStandbys(POOL, open_store)
    await cells.give(1, 3, ("r2",), 45.0)
    assert ([], None) == (opened, await heard())
    await cells.give(2, 3, ("r2",), 45.0)
    assert ([cell_name(POOL, 1)], True) == (opened, await heard())
    # A leader that was deposed meanwhile.
    assert not await other.hold(2, (), 45.0)
    assert await heard()
    await cells.give(2, 3, (), 45.0)
    assert await heard() is False
    await cells.give(2, 3, ("r2",), 45.0)
    local.clock.advance(46)
    assert await heard() is None


async def test_a_leader_orders_the_replicas_of_all_cells(local: Backend) -> None:
    site = Site(local, 6, standby=4, standby_price=0.1, min_replicas=2)
    site.settings = site.settings.model_copy(update={"cells": 2})
    other = RedisControlStore(local.memory, cell_name(POOL, 1), clock=local.clock)
    local.opened.append(other)
    scaler = site.scaler(cells=CellStandbys(POOL, lambda _: other))
    [*_, made] = await site.run(scaler, 40)
    queue = RedisQueue(local.memory, cell_name(POOL, 1))
    reply = await queue.heartbeat_replica(ReplicaBeat(site.ready[-1], b"", ReplicaState.READY, ROOM, ()))
    assert made.standby > 0
    assert reply.standby


async def test_none_stands_by_in_a_roll_out(local: Backend) -> None:
    """Each replica gives way in its turn."""
    site = Site(local, 6, standby=4, standby_price=0.1)
    scaler = site.scaler()
    await site.run(scaler, 40)
    loaded = len(site.ready)
    assert site.standing
    rules = rules_of(site.settings)
    rolling = Rollout(base_of(site.settings), Revision(), Revision(1, {"model": "x"}), rules, size=loaded)
    await local.rollout().put(0, 1, rolling.to_bytes())
    [*_, made] = await site.run(scaler, 2)
    assert (loaded, 0) == (made.replicas, made.standby)
    await site.live(3.0)
    assert not site.standing
    assert loaded == site.platform.target == len(site.ready)


async def test_the_budget_pays_for_standbys_by_their_price(local: Backend) -> None:
    site = Site(local, 6, standby=4, standby_least=4, standby_price=0.5)
    site.settings = site.settings.model_copy(update={"budget_per_hour": 2.0})
    made = await site.run(site.scaler(), 60)
    assert [(2, 0), (1, 2)] == list(dict.fromkeys((one.replicas, one.standby) for one in made))
