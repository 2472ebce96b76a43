"""A key of a pool is gone: Redis evicted it, or somebody deleted it. No heartbeat fails, and every request goes on."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from cluster.clock import ManualClock
from cluster.queue.entries import Grant, Mail, QueueEntry, QueueLimits, Quota, Settlement
from cluster.queue.redis.keys import POOL_KEYS
from cluster.redis.keys import pool_key
from penstock.models import RequestClass
from tests.cluster.queue.backends import POOL, WIDE, Backend, Scene, entry

USED = Settlement(5, requests=1, prompt_tokens=10)
DAY_S = 86_400


class Routers(Scene):
    """Routers that do what real ones do: submit again what waits where the store is another one, and end their own."""

    def __init__(self, queue: Any, clock: ManualClock) -> None:
        super().__init__(queue, clock)
        self.waiting: dict[str, dict[str, QueueEntry]] = {"A": {}, "B": {}}
        self.running: dict[str, dict[str, Grant]] = {"A": {}, "B": {}}
        self.store: dict[str, str] = {}
        self.expired: list[str] = []

    async def ask(self, router: str, name: str, **changes: Any) -> None:
        self.waiting[router][name] = asked = entry(name, **changes)
        submitted = await self.queue.submit(router, asked)
        if submitted.grant is not None:
            self.take(router, Mail(grants=(submitted.grant,)))

    def take(self, router: str, mail: Mail) -> None:
        for grant in mail.grants:
            if self.waiting[router].pop(grant.request_id, None) is not None:
                self.running[router][grant.request_id] = grant

    async def turn(self) -> None:
        """Let half a second pass in which everybody sends a heartbeat."""
        self.clock.advance(0.5)
        for name in self.replicas:
            mine = [g for grants in self.running.values() for g in grants.values() if g.replica_id == name]
            await self.beat_replica(name, tuple((grant.request_id, grant.attempt) for grant in mine))
        for router, waiting in self.waiting.items():
            started = tuple((grant.request_id, grant.attempt) for grant in self.running[router].values())
            reply = await self.beat_router(router, started, positions_of=tuple(waiting))
            self.take(router, reply.mail)
            for order in reply.mail.orders:
                await self.queue.release(router, order.request_id, "", Settlement(0))
                if waiting.pop(order.request_id, None) is not None:
                    self.expired.append(order.request_id)
            if self.store.setdefault(router, reply.run_id) != reply.run_id:
                self.store[router] = reply.run_id
                for name, asked in list(waiting.items()):
                    await self.ask(router, name, start_within_ms=asked.start_within_ms)

    async def finish(self, count: int) -> list[str]:
        """End that many requests that run."""
        pairs = [(router, grant) for router, grants in self.running.items() for grant in grants.values()][:count]
        for router, grant in pairs:
            del self.running[router][grant.request_id]
            self.take(router, await self.queue.release(router, grant.request_id, grant.attempt, USED))
        return [grant.request_id for _router, grant in pairs]


def lose(backend: Backend, name: str) -> int:
    """Delete a key; return whether there was one."""
    assert backend.server is not None
    with contextlib.closing(backend.server.client()) as client:
        return int(client.delete(pool_key(POOL, name)))


@pytest.fixture
async def routers(redis_backend: Backend) -> Routers:
    """Eight requests of two routers run, six wait, two of them with a bound; two of a dead router are parked."""
    limits = QueueLimits(ledger_days=30)
    scene = Routers(redis_backend.queue(limits), redis_backend.clock)
    await scene.start({"r1": WIDE, "r2": WIDE}, ("A", "B"))
    quota = Quota(tokens_per_minute=100_000, requests_per_minute=1_000, concurrency=100)
    for number in range(14):
        fields: dict[str, Any] = {"tenant": f"t{number % 3}", "quota": quota, "client_key": f"k{number}", "digest": "d"}
        fields["request_class"] = RequestClass(number % 3)
        await scene.ask("AB"[number % 2], f"q{number}", **fields, start_within_ms=60_000 if number >= 12 else 0)
    for number in range(2):
        await scene.queue.submit("C", entry(f"c{number}", tenant="t0"))
    for _ in range(10):
        await scene.turn()
    assert 8 == sum(map(len, scene.running.values()))
    return scene


@pytest.mark.parametrize("name", POOL_KEYS)
async def test_every_request_goes_on_and_nothing_is_left(redis_backend: Backend, routers: Routers, name: str) -> None:
    await routers.finish(1)
    await routers.queue.finish_key("A", "t0", "k0", "q0", b"result")
    asked = {name for waiting in routers.waiting.values() for name in waiting}
    asked |= {name for running in routers.running.values() for name in running}
    lose(redis_backend, name)

    ended: list[str] = []
    for _ in range(60):
        await routers.turn()
        ended += await routers.finish(2)
    assert asked == set(ended)

    await routers.ask("A", "new")
    for _ in range(3):
        await routers.turn()
    assert ["new"] == await routers.finish(1)
    # The rest is a matter of time: of the dead router, of clients' keys, of quotas, of the ledger.
    for days, turns in ((0.001, 30), (0.1, 60), (1, 10), (40, 10)):
        routers.clock.advance(days * DAY_S)
        for _ in range(turns):
            await routers.turn()
    left = redis_backend.sizes()
    for key in ("entries", "owners", "slots", "keys", "results", "quotas", "outputs", "open_counts", "ledger"):
        assert 0 == left.get(key, 0), key


async def test_entries_that_should_have_started_expire_without_their_deadlines(
    redis_backend: Backend, routers: Routers
) -> None:
    assert lose(redis_backend, "deadlines")
    routers.clock.advance(0.5)
    await routers.turn()
    for _ in range(140):
        await routers.turn()

    assert {"q12", "q13"} == set(routers.expired)


@pytest.mark.parametrize("name", ["entries", "line", "owners", "slots", "active:1", "pool"])
async def test_the_loss_of_one_is_the_loss_of_all_and_routers_hear_of_it(
    redis_backend: Backend, routers: Routers, name: str
) -> None:
    before = dict(routers.store)
    assert lose(redis_backend, name)

    await routers.turn()
    await routers.turn()

    assert all(routers.store[router] != store for router, store in before.items())


async def test_nothing_is_forgotten_while_nothing_is_lost(redis_backend: Backend, routers: Routers) -> None:
    before = dict(routers.store)
    for _ in range(20):
        await routers.turn()
        await routers.finish(1)

    assert before == routers.store


async def test_a_lost_result_leaves_room_for_others(redis_backend: Backend) -> None:
    scene = Scene(redis_backend.queue(QueueLimits(max_result_bytes=100)), redis_backend.clock)
    await scene.start({"r1": WIDE})
    for number in range(4):
        await scene.queue.submit("A", entry(f"q{number}", client_key=f"k{number}", digest="d"))
    assert await scene.queue.finish_key("A", "acme", "k0", "q0", b"x" * 90)
    assert lose(redis_backend, "results")
    await scene.beat()

    for number in (1, 2, 3):
        assert await scene.queue.finish_key("A", "acme", f"k{number}", f"q{number}", b"x" * 30)
    known = await scene.queue.find_key("acme", "k1", "other", "d")
    assert known is not None
    assert b"x" * 30 == known.result


async def test_the_ledger_is_read_again_after_its_list_of_days_is_lost(redis_backend: Backend) -> None:
    scene = Routers(redis_backend.queue(QueueLimits(ledger_days=30)), redis_backend.clock)
    await scene.start({"r1": WIDE}, ("A", "B"))
    for number in range(20):
        await scene.ask("A", f"q{number}", tenant=f"t{number}")
        await scene.finish(1)
    lines = await scene.queue.usage("", 0, 100_000)
    assert 20 == len(lines)
    assert lose(redis_backend, "ledger_days")

    for _ in range(20):
        await scene.turn()

    assert sorted(map(str, lines)) == sorted(map(str, await scene.queue.usage("", 0, 100_000)))
