"""GPU time by hour and kind: the kinds add up to the replicas' time, and nothing counts twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from cluster.models import Windows
from cluster.queue.entries import CostLine, QueueLimits, Settlement
from cluster.queue.heartbeats import ReplicaTimes
from cluster.redis.keys import pool_key
from tests.cluster.queue.backends import POOL, Backend, Scene, entry

WIDE = Windows(64, 10**6, 10**6)
HOUR_MS = 3_600_000
GPUS, PRICE = 2, 0.5


def times(total: float, **kinds: float) -> ReplicaTimes:
    """Return an account; what no kind has is idle."""
    left = total - sum(kinds.values())
    return ReplicaTimes(GPUS, PRICE, total=total, **{"idle": left, **kinds})


def cut_to(backend: Backend, key: str, field: str | bytes, length: int) -> None:
    """Shorten a stored list, to one of the last release."""
    name = pool_key(POOL, key)
    backend.ask("HSET", name, field, msgpack.packb(msgpack.unpackb(backend.ask("HGET", name, field))[:length]))


async def costs(scene: Scene) -> list[CostLine]:
    return list(await scene.queue.costs(0, 10**7))


async def sums(scene: Scene) -> dict[str, float]:
    """Return GPU-seconds by kind over all hours, and check that the kinds add up in each."""
    lines = await costs(scene)
    for line in lines:
        assert sum(part.gpu_seconds for part in line.parts) == pytest.approx(line.total.gpu_seconds, abs=1e-6)
        assert sum(part.cost for part in line.parts) == pytest.approx(line.total.cost, abs=1e-6)
        assert line.total.cost == pytest.approx(PRICE * line.total.gpu_seconds)
    names = ("total", "requests", "starting", "idle", "draining", "lost", "running", "standby")
    found = {name: sum(getattr(line, name).gpu_seconds for line in lines) for name in names}
    return {name: round(seconds, 6) for name, seconds in found.items() if abs(seconds) > 1e-6}


async def at_middle_of_an_hour(scene: Scene, backend: Backend) -> None:
    """Start, and move on to 30 minutes past an hour."""
    await scene.start({"r1": WIDE}, ("A",))
    backend.clock.advance(5400 - scene.clock.wall_ms() % HOUR_MS / 1000)
    await scene.beat()
    await scene.pass_time(5, routers=["A"], replicas=["r1"])


async def grant(scene: Scene, name: str = "q1") -> Any:
    return (await scene.queue.submit("A", entry(name))).grant


async def test_an_attempt_moves_from_running_to_its_receipt(scene: Scene, backend: Backend) -> None:
    await at_middle_of_an_hour(scene, backend)
    first = times(100.0, starting=60.0)
    await scene.beat_replica("r1", times=first)
    assert {"total": 100.0, "starting": 60.0, "idle": 40.0} == await sums(scene)

    granted = await grant(scene)
    second = times(120.0, starting=60.0, running=12.0)
    await scene.beat_replica("r1", ((granted.request_id, granted.attempt),), times=second, told=first)
    assert {"total": 120.0, "starting": 60.0, "idle": 48.0, "running": 12.0} == await sums(scene)

    await scene.queue.release("A", "q1", granted.attempt, Settlement(1, 1, 1, gpu_seconds=15.0, cost=3.25))
    await scene.beat_replica("r1", times=times(130.0, starting=60.0, ended=15.0), told=second)
    assert {"total": 130.0, "starting": 60.0, "idle": 55.0, "requests": 15.0} == await sums(scene)
    assert 3.25 == sum(line.charged for line in await costs(scene))


async def test_an_end_that_no_router_took_is_lost(scene: Scene, backend: Backend) -> None:
    """And of an attempt whose router gave it up: it settles nothing."""
    await at_middle_of_an_hour(scene, backend)
    granted = await grant(scene)
    await scene.queue.requeue("A", "q1", granted.attempt, Settlement(0))
    await scene.beat_replica("r1", times=times(50.0, ended=20.0))
    assert {"total": 50.0, "idle": 30.0, "lost": 20.0} == await sums(scene)


async def test_an_end_that_is_settled_after_the_heartbeat_is_lost_no_more(scene: Scene, backend: Backend) -> None:
    await at_middle_of_an_hour(scene, backend)
    granted = await grant(scene)
    told = times(50.0, ended=20.0)
    await scene.beat_replica("r1", ((granted.request_id, granted.attempt),), times=told)
    await scene.queue.release("A", "q1", granted.attempt, Settlement(1, gpu_seconds=20.0))
    await scene.beat_replica("r1", times=times(50.0, ended=20.0), told=told)
    assert {"total": 50.0, "idle": 30.0, "requests": 20.0} == await sums(scene)


async def test_a_heartbeat_that_comes_twice_counts_once(scene: Scene, backend: Backend) -> None:
    """And so does one whose answer was lost: the replica's base is then older than the store's."""
    await at_middle_of_an_hour(scene, backend)
    first = times(10.0)
    for _ in range(3):
        await scene.beat_replica("r1", times=first)
    for _ in range(3):
        await scene.beat_replica("r1", times=times(14.0), told=first)
    assert {"total": 14.0, "idle": 14.0} == await sums(scene)


async def test_a_dead_replica_is_charged_until_its_lease_ends(scene: Scene, backend: Backend) -> None:
    await at_middle_of_an_hour(scene, backend)
    granted = await grant(scene)
    await scene.beat_replica("r1", ((granted.request_id, granted.attempt),), times=times(100.0, running=30.0))
    await scene.pass_time(6, routers=["A"], replicas=[])

    lost = 30.0 + GPUS * QueueLimits().lease_ms / 1000
    assert {"total": 70.0 + lost, "idle": 70.0, "lost": lost} == await sums(scene)


async def test_a_replica_that_comes_back_takes_back_what_was_lost(scene: Scene, backend: Backend) -> None:
    await at_middle_of_an_hour(scene, backend)
    granted = await grant(scene)
    told = times(100.0, running=30.0)
    await scene.beat_replica("r1", ((granted.request_id, granted.attempt),), times=told)
    await scene.pass_time(6, routers=["A"], replicas=[])

    running = ((granted.request_id, granted.attempt),)
    back = times(112.0, running=42.0)
    await scene.beat_replica("r1", running, times=back, told=told)
    assert {"total": 112.0, "idle": 70.0, "running": 42.0} == await sums(scene)
    await scene.queue.release("A", "q1", granted.attempt, Settlement(1, gpu_seconds=44.0))
    await scene.beat_replica("r1", times=times(120.0, ended=44.0), told=back)
    assert {"total": 120.0, "idle": 76.0, "requests": 44.0} == await sums(scene)


async def test_a_settlement_after_the_replica_left_is_not_lost(scene: Scene, backend: Backend) -> None:
    await at_middle_of_an_hour(scene, backend)
    granted = await grant(scene)
    told = times(100.0, running=30.0)
    await scene.beat_replica("r1", ((granted.request_id, granted.attempt),), times=told)
    await scene.queue.retire_replica("r1")
    await scene.queue.account("r1", times(110.0, ended=32.0, draining=8.0), told)
    assert {"total": 110.0, "idle": 70.0, "draining": 8.0, "lost": 32.0} == await sums(scene)

    await scene.queue.release("A", "q1", granted.attempt, Settlement(1, gpu_seconds=32.0))
    assert {"total": 110.0, "idle": 70.0, "draining": 8.0, "requests": 32.0} == await sums(scene)


async def test_a_start_counts_before_the_first_heartbeat(scene: Scene, backend: Backend) -> None:
    await at_middle_of_an_hour(scene, backend)
    first, second = times(10.0, starting=10.0), times(24.0, starting=24.0)
    await scene.queue.account("new", first)
    await scene.queue.account("new", second, first)
    assert {"total": 24.0, "starting": 24.0} == await sums(scene)
    scene.replicas["new"] = WIDE
    await scene.beat_replica("new", times=times(40.0, starting=30.0), told=second)
    assert {"total": 40.0, "starting": 30.0, "idle": 10.0} == await sums(scene)


async def test_a_store_that_was_emptied_counts_on_from_there(scene: Scene, backend: Backend) -> None:
    await at_middle_of_an_hour(scene, backend)
    told = times(9000.0, starting=1000.0)
    await scene.beat_replica("r1", times=told)
    backend.ask("FLUSHALL")
    backend.restart()
    await scene.beat_replica("r1", times=times(9010.0, starting=1000.0), told=told)
    assert {"total": 10.0, "idle": 10.0} == await sums(scene)


async def test_a_new_process_with_the_same_name_starts_from_zero(scene: Scene, backend: Backend) -> None:
    await at_middle_of_an_hour(scene, backend)
    await scene.beat_replica("r1", times=times(100.0))
    await scene.beat_replica("r1", times=times(7.0, starting=7.0))
    assert {"total": 107.0, "idle": 100.0, "starting": 7.0} == await sums(scene)


async def test_time_goes_to_the_hours_in_which_it_passed(scene: Scene, backend: Backend) -> None:
    """30 minutes past the hour, with 90 minutes to account for: an outage of Redis."""
    await at_middle_of_an_hour(scene, backend)
    past_s = scene.clock.wall_ms() % HOUR_MS / 1000
    hour = scene.clock.wall_ms() // HOUR_MS
    await scene.beat_replica("r1", times=times(GPUS * 5400.0))

    lines = await costs(scene)

    assert [hour - 1, hour] == [line.hour for line in lines][-2:]
    assert lines[-1].idle.gpu_seconds == pytest.approx(GPUS * past_s, abs=0.01)
    assert lines[-2].idle.gpu_seconds == pytest.approx(GPUS * min(3600, 5400 - past_s), abs=0.01)
    assert {"total": GPUS * 5400.0, "idle": GPUS * 5400.0} == await sums(scene)


async def test_a_clock_that_jumps_counts_no_time(scene: Scene, backend: Backend) -> None:
    await at_middle_of_an_hour(scene, backend)
    told = times(10.0)
    await scene.beat_replica("r1", times=told)
    for jump in (86_400, -2 * 86_400):
        backend.clock.jump_wall(jump)
        now = replace(told, total=told.total + 1, idle=told.idle + 1)
        await scene.beat_replica("r1", times=now, told=told)
        told = now
    assert {"total": 12.0, "idle": 12.0} == await sums(scene)


async def test_costs_are_no_usage_and_go_with_it(backend: Backend) -> None:
    scene = Scene(backend.queue(QueueLimits(ledger_days=2)), backend.clock)
    await scene.start({"r1": WIDE}, ("A",))
    total = 0.0
    for _ in range(4):
        total += 10.0
        await scene.beat_replica("r1", times=times(total))
        backend.clock.advance(86_400)
        await scene.pass_time(6, routers=["A"], replicas=["r1"])

    assert () == tuple(await scene.queue.usage("", 0, 10**6))
    assert 1 == len(await costs(scene))
    assert 10.0 == (await sums(scene))["total"]


async def test_without_a_ledger_there_are_no_costs(backend: Backend) -> None:
    scene = Scene(backend.queue(QueueLimits(ledger_days=0)), backend.clock)
    await scene.start({"r1": WIDE}, ("A",))
    await scene.beat_replica("r1", times=times(10.0))
    assert [] == await costs(scene)
    assert 0 == backend.sizes().get("meters", 0)


async def test_the_account_of_a_replica_that_is_long_gone_is_forgotten(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": WIDE, "r2": WIDE}, ("A",))
    for name in ("r1", "r2"):
        await scene.beat_replica(name, times=times(10.0))
    await scene.queue.retire_replica("r2")
    backend.clock.advance(3700)
    for _ in range(40):
        await scene.pass_time(1, routers=["A"], replicas=["r1"])
    known = [backend.ask("HEXISTS", pool_key(POOL, "meters"), name) for name in ("r1", "r2")]
    assert [1, 0] == [int(found) for found in known]


async def test_a_long_history_comes_whole_and_in_order(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": WIDE}, ("A",))
    total = 0.0
    for _ in range(300):
        backend.clock.advance(3600)
        total += 1.0
        await scene.beat_replica("r1", times=times(total))
    hours = [line.hour for line in await costs(scene)]
    assert 300 == len(hours)
    assert sorted(hours) == hours
    assert hours[10:21] == [line.hour for line in await scene.queue.costs(hours[10], hours[20])]


async def test_standby_is_a_kind_of_its_own_beside_lines_and_accounts_of_the_last_release(
    scene: Scene, backend: Backend
) -> None:
    await at_middle_of_an_hour(scene, backend)
    first = times(100.0, starting=60.0)
    await scene.beat_replica("r1", times=first)
    # The last release keeps no ninth number of an account, and no sixteenth of a line.
    cut_to(backend, "meters", "r1", 9)
    for line in await costs(scene):
        cut_to(backend, "ledger", f"{line.hour // 24}\0\0{line.hour}", 15)
    assert {"total": 100.0, "starting": 60.0, "idle": 40.0} == await sums(scene)

    second = times(130.0, starting=60.0, standby=25.0)
    await scene.beat_replica("r1", times=second, told=first)
    assert {"total": 130.0, "starting": 60.0, "idle": 45.0, "standby": 25.0} == await sums(scene)
    await scene.beat_replica("r1", times=times(140.0, starting=60.0, standby=35.0), told=second)
    assert {"total": 140.0, "starting": 60.0, "idle": 45.0, "standby": 35.0} == await sums(scene)
