"""The ledger adds up what was used, once per settlement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from cluster.models import Windows
from cluster.queue.entries import HourUse, QueueLimits, Settlement, UsageLine
from cluster.redis.keys import pool_key
from tests.cluster.queue.backends import POOL, Backend, Scene, entry

WIDE = Windows(64, 10**6, 10**6)
DAYS = (0, 10**6)
LEDGER, LEDGER_DAYS = pool_key(POOL, "ledger"), pool_key(POOL, "ledger_days")


async def run_one(scene: Scene, name: str, used: Settlement, tenant: str = "acme", router: str = "A") -> None:
    grant = (await scene.queue.submit(router, entry(name, tenant=tenant))).grant
    await scene.queue.release(router, name, grant.attempt, used)
    # Saying it again changes nothing.
    await scene.queue.release(router, name, grant.attempt, used)


async def test_lines_add_up_by_tenant_and_day(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": WIDE}, ("A", "B"))
    today = scene.clock.wall_ms() // 86_400_000
    for i in range(4):
        await run_one(scene, f"q{i}", Settlement(10, 1, 7, 3, 0.5, 0.25), router="AB"[i % 2])
    await run_one(scene, "other", Settlement(1, 1, 2, 0, 0.125, 0.0), tenant="beta")
    backend.clock.advance(86_400)
    await scene.pass_time(6, routers=["A", "B"], replicas=["r1"])
    await run_one(scene, "late", Settlement(5, 1, 1, 0, 0.0, 1.0))

    lines = await scene.queue.usage("", *DAYS)

    assert tuple(replace(line, hours=()) for line in lines) == (
        UsageLine(today, "acme", 4, 28, 40, 12, 2.0, 1.0),
        UsageLine(today, "beta", 1, 2, 1, 0, 0.125, 0.0),
        UsageLine(today + 1, "acme", 1, 1, 5, 0, 0.0, 1.0),
    )
    assert await scene.queue.usage("beta", *DAYS) == lines[1:2]
    assert await scene.queue.usage("acme", today + 1, today + 1) == lines[2:]
    assert await scene.queue.usage("", *DAYS, limit=2) == lines[:2]


async def test_an_attempt_that_gave_way_counts_its_time_and_the_end_its_tokens(scene: Scene) -> None:
    await scene.start({"r1": WIDE}, ("A", "B"))
    first = (await scene.queue.submit("A", entry("q1"))).grant
    mail = await scene.queue.requeue("A", "q1", first.attempt, Settlement(4, gpu_seconds=0.5, cost=0.25))
    await scene.queue.release("A", "q1", mail.grants[0].attempt, Settlement(10, 1, 7, 0, 0.25, 0.5))

    [line] = await scene.queue.usage("acme", *DAYS)

    assert (line.requests, line.prompt_tokens, line.output_tokens) == (1, 7, 10)
    assert (line.gpu_seconds, line.cost) == (0.75, 0.75)


async def test_a_line_has_its_hours_for_a_month(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": WIDE}, ("A", "B"))
    backend.clock.advance(86_400 - scene.clock.wall_ms() / 1000 % 86_400 + 7200)
    await scene.pass_time(6, routers=["A", "B"], replicas=["r1"])
    first = scene.clock.wall_ms() // 86_400_000
    for i in range(3):
        await run_one(scene, f"q{i}", Settlement(10, 1, 7, 3, 0.5, 0.25))
        backend.clock.advance(1800)
        await scene.pass_time(6, routers=["A", "B"], replicas=["r1"])
    [line] = await scene.queue.usage("acme", *DAYS)
    assert (HourUse(2, 2, 14, 20, 6, 1.0, 0.5), HourUse(3, 1, 7, 10, 3, 0.5, 0.25)) == line.hours
    assert 3 == line.requests

    for day, hours in ((30, 2), (31, 0)):
        backend.clock.advance((first + day) * 86_400 + 10 - scene.clock.wall_ms() / 1000)
        await scene.pass_time(6, routers=["A", "B"], replicas=["r1"])
        await run_one(scene, f"d{day}", Settlement(1, 1, 1))
        [old] = await scene.queue.usage("acme", first, first)
        assert hours == len(old.hours)
        assert replace(line, hours=old.hours) == old


@pytest.mark.parametrize(("days", "kept"), [(0, 0), (2, 1), (30, 3)])
async def test_old_lines_go(backend: Backend, days: int, kept: int) -> None:
    scene = Scene(backend.queue(QueueLimits(ledger_days=days)), backend.clock)
    await scene.start({"r1": WIDE}, ("A", "B"))
    for i in range(3):
        await run_one(scene, f"q{i}", Settlement(1, 1, 1))
        backend.clock.advance(86_400)
        await scene.pass_time(6, routers=["A", "B"], replicas=["r1"])

    assert len(await scene.queue.usage("", *DAYS)) == kept


@pytest.mark.parametrize(("days", "kept"), [(0, 0), (2, 1)])
async def test_old_lines_go_although_nothing_more_is_entered(backend: Backend, days: int, kept: int) -> None:
    """After the settings' `ledger_days` was lowered."""
    before = Scene(backend.queue(QueueLimits(ledger_days=30)), backend.clock)
    await before.start({"r1": WIDE}, ("A", "B"))
    for i in range(3):
        for tenant in range(50):
            await run_one(before, f"q{i}-{tenant}", Settlement(1, 1, 1), f"tenant-{tenant}")
        backend.clock.advance(86_400)
        await before.pass_time(6, routers=["A", "B"], replicas=["r1"])
    assert backend.sizes()["ledger"] == 150

    after = Scene(backend.queue(QueueLimits(ledger_days=days)), backend.clock)
    after.replicas = before.replicas
    await after.pass_time(6, routers=["A", "B"], replicas=["r1"])

    assert len(await after.queue.usage("", *DAYS)) == 50 * kept
    assert [backend.sizes().get(name, 0) for name in ("ledger", "ledger_days")] == [50 * kept] * 2


async def test_a_long_ledger_comes_whole_and_in_order(backend: Backend) -> None:
    """Redis gives it in parts."""
    scene = Scene(backend.queue(QueueLimits(ledger_days=3660)), backend.clock)
    await scene.start({"r1": WIDE}, ("A", "B"))
    first = scene.clock.wall_ms() // 86_400_000
    for i in range(300):
        await run_one(scene, f"q{i}", Settlement(i, 1, 1), tenant=f"tenant-{i:03}")
    for i in range(1, 300):
        backend.clock.advance(86_400)
        if i != 200:
            await run_one(scene, f"d{i}", Settlement(i, 1, 1), tenant="tenant-007")
    days = [first + i for i in range(300) if i != 200]
    everything = [(first, f"tenant-{i:03}") for i in range(300)] + [(day, "tenant-007") for day in days[1:]]

    async def ask(tenant: str, *days: int, limit: int = 10_000) -> list[tuple[int, str]]:
        return [(line.day, line.tenant) for line in await scene.queue.usage(tenant, *days, limit)]

    assert await ask("", *DAYS) == everything
    for limit in (1, 256, 257, 512, 598, 599):
        assert await ask("", *DAYS, limit=limit) == everything[:limit]
    assert await ask("", first, first) == everything[:300]
    assert await ask("", first + 1, first + 5) == everything[300:305]
    assert [day for day, _ in await ask("tenant-007", *DAYS)] == days
    assert [day for day, _ in await ask("tenant-007", -(10**6), 10**6, limit=257)] == days[:257]
    assert [day for day, _ in await ask("tenant-007", first + 3, first + 290)] == [
        day for day in days if first + 3 <= day <= first + 290
    ]
    assert await ask("tenant-299", *DAYS) == [(first, "tenant-299")]
    assert await ask("nobody", *DAYS) == []


def fill_ledger(client: Any, days: range, tenants: int) -> None:
    """Write lines as if they had been used."""
    line = msgpack.packb([1, 1, 1, 0, 0.5, 0.25])
    for day in days:
        fields = [f"{day}\0tenant-{i:05}".encode() for i in range(tenants)]
        client.hset(LEDGER, mapping=dict.fromkeys(fields, line))
        client.zadd(LEDGER_DAYS, dict.fromkeys(fields, day))


async def test_what_others_used_does_not_make_a_reader_hold_redis_up(redis_backend: Backend) -> None:
    """Redis serves nobody else while a script runs; it needed 30 ms here when it looked at every line."""
    scene = Scene(redis_backend.queue(), redis_backend.clock)
    await scene.start({"r1": WIDE}, ("A",))
    assert redis_backend.server is not None
    client = redis_backend.server.client()
    try:
        fill_ledger(client, range(1000, 1020), 2000)
        for tenant, lines in (("tenant-00007", 20), ("nobody", 0), ("", 10_001)):
            took = []
            for _ in range(5):
                client.config_resetstat()
                assert len(await scene.queue.usage(tenant, -(10**6), 10**6, 10_001)) == lines
                took.append(client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])
            assert min(took) < 8000
    finally:
        client.close()


async def test_lines_that_go_while_they_are_read_hide_no_others(redis_backend: Backend) -> None:
    queue = redis_backend.queue()
    await Scene(queue, redis_backend.clock).start({"r1": WIDE}, ("A",))
    assert redis_backend.server is not None
    client = redis_backend.server.client()
    fill_ledger(client, range(1000, 1010), 100)
    call, calls = queue._call, 0

    async def ask(name: str, arguments: bytes) -> Any:
        nonlocal calls
        calls += 1
        reply = await call(name, arguments)
        if calls == 1:
            # As `reap` does, beyond the line where this call stopped.
            old = client.zrange(LEDGER_DAYS, 0, 299)
            client.zrem(LEDGER_DAYS, *old)
            client.hdel(LEDGER, *old)
        return reply

    queue._call = ask
    try:
        lines = await queue.usage("", *DAYS)
    finally:
        client.close()

    assert calls > 2
    seen = [(line.day, line.tenant) for line in lines]
    assert seen == sorted(set(seen))
    assert set(seen) >= {(day, f"tenant-{i:05}") for day in range(1003, 1010) for i in range(100)}
