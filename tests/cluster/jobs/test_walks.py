"""The scripts answer alike in process and in a server, and no job ever has two results for an item."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.clock import ManualClock
from cluster.errors import PenstockError
from cluster.jobs.contract import ItemResult, JobClaim, JobLimits, JobState, JobUsage
from cluster.jobs.redis.keys import shared_key
from cluster.jobs.redis.store import RedisJobStore
from cluster.redis.in_process.server import InProcessRedis
from tests.cluster.jobs.conftest import POOL
from tests.cluster.queue.backends import flush
from tests.cluster.queue.servers import Server
from tests.support.stores import KINDS

pytestmark = pytest.mark.every_store("every script, in random walks")

LIMITS = JobLimits(
    lease_ms=2_000,
    upload_ms=6_000,
    ttl_ms=8_000,
    tenant_feeding=2,
    tenant_jobs=4,
    tenant_items=14,
    tenant_bytes=400,
    max_jobs=6,
    max_items=20,
    max_bytes=600,
)
TENANTS = ("acme", "beta", "größe")


class Pair:
    """Asks both servers and holds their answers against each other."""

    def __init__(self, server: Server, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.server = InProcessRedis(self.clock)
        self.local = RedisJobStore(self.server, POOL, LIMITS, clock=self.clock)
        self.redis = RedisJobStore(server.url, POOL, LIMITS, 10.0, clock=self.clock)
        self.counter = server.client()
        self.jobs: list[str] = []
        self.claims: list[tuple[JobClaim, JobClaim]] = []
        self.stored: set[tuple[str, int]] = set()

    async def close(self) -> None:
        """Disconnect."""
        await self.redis.close()
        self.counter.close()

    async def both(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        """Ask both; returns the answer they share."""
        local, redis = await _answer(ask(self.local)), await _answer(ask(self.redis))
        assert local == redis
        return redis[1]

    async def held(self, ask: Callable[[Any, JobClaim], Awaitable[Any]], claims: tuple[JobClaim, JobClaim]) -> Any:
        """Ask both, each with its own claim: tokens are random."""
        local = await _answer(ask(self.local, claims[0]))
        redis = await _answer(ask(self.redis, claims[1]))
        assert local == redis
        return redis

    async def step(self) -> None:
        """Do something."""
        await self.random.choice(
            (self.upload, self.upload, self.claim, self.claim, self.store, self.store, self.store, self.more, self.end)
        )()
        self.clock.advance(self.random.choice((0, 0, 0.001, 0.3, 0.9, 2.5)))

    async def upload(self) -> None:
        name = f"j{len(self.jobs)}"
        tenant, key = self.random.choice(TENANTS), self.random.choice(("", "", "k1", "k2"))
        sizes = [self.random.randint(1, 3) for _ in range(self.random.randint(0, 3))]
        self.jobs.append(name)
        at = 0
        await self.both(lambda store: store.create(name, tenant, b"header"))
        for size in sizes:
            items = [self.random.randbytes(self.random.randint(0, 20)) for _ in range(size)]
            await self.both(lambda store, at=at, items=items: store.append(name, at, items))
            at += size
        stored = await self.both(lambda store: store.get(name))
        # A job without items is never sealed.
        if self.random.random() < 0.9 and stored is not None and stored.items:
            await self.both(lambda store: store.seal(name, key, f"digest-{at}", 5_000))
        await self.both(lambda store: store.find(tenant, "k1"))

    async def claim(self) -> None:
        holder, takeover = self.random.choice("AB"), self.random.random() < 0.7
        local = await self.local.claim(holder, takeover=takeover)
        redis = await self.redis.claim(holder, takeover=takeover)
        assert (local and local.record) == (redis and redis.record)
        if local is not None and redis is not None:
            self.claims.append((local, redis))

    async def store(self) -> None:
        if not self.claims:
            return
        claims = self.random.choice(self.claims[-4:])
        job_id, items = claims[0].record.job_id, claims[0].record.items
        item, failed = self.random.randrange(items), self.random.random() < 0.3
        used = JobUsage(self.random.randint(0, 9), self.random.randint(0, 9), 0, self.random.randint(0, 8) / 8, 0.5)
        result = ItemResult(self.random.randbytes(self.random.randint(0, 30)), failed, used)
        answer = await self.held(lambda store, claim: store.store(claim, item, result), claims)
        if answer == ("ok", True):
            assert (job_id, item) not in self.stored
            self.stored.add((job_id, item))

    async def more(self) -> None:
        if not self.claims:
            return
        claims = self.random.choice(self.claims[-4:])
        choice = self.random.randrange(4)
        if choice == 0:
            await self.held(lambda store, claim: store.renew(claim), claims)
        elif choice == 1:
            name = self.random.choice("ab")
            await self.held(lambda store, claim: store.count_failure(claim, 0, name), claims)
        elif choice == 2:
            await self.held(lambda store, claim: store.release(claim), claims)
        else:
            await self.both(lambda store: store.sweep())

    async def end(self) -> None:
        if self.jobs:
            name = self.random.choice(self.jobs[-6:])
            if self.random.random() < 0.5:
                await self.both(lambda store: store.cancel(name))
            else:
                await self.both(lambda store: store.delete(name))

    async def compare(self) -> None:
        """Compare all that can be seen, and the counts that bounds rest on."""
        for name in self.jobs:
            await self.both(lambda store, name=name: store.get(name))
            await self.both(lambda store, name=name: store.results(name, 0, 50))
            await self.both(lambda store, name=name: store.block(name, 0))
            await self.both(lambda store, name=name: store.backlog(name))
        for tenant in TENANTS:
            await self.both(lambda store, tenant=tenant: store.list_jobs(tenant, None, 50))
        usage = shared_key(POOL, "usage")
        here = self.server.execute("HGETALL", usage)
        assert dict(zip(here[::2], here[1::2], strict=True)) == self.counter.hgetall(usage)


async def _answer(call: Awaitable[Any]) -> tuple[str, Any]:
    try:
        return "ok", await call
    except PenstockError as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_redis_in_process_and_in_a_server_answer_alike(kind: str, redis_servers: dict[str, Server]) -> None:
    server = redis_servers[kind]

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**32))
    def walk(seed: int) -> None:
        asyncio.run(_walk(server, seed))

    walk()


async def _walk(server: Server, seed: int) -> None:
    flush(server)
    pair = Pair(server, seed)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(pair.close)
        for number in range(80):
            await pair.step()
            if number % 10 == 0:
                await pair.compare()
        # Whatever happened, time clears it all away.
        for _ in range(4):
            pair.clock.advance(10)
            await pair.both(lambda store: store.sweep())
        await pair.compare()
        assert [] == pair.server.execute("KEYS", "*")
        assert [] == pair.counter.keys("*")


def test_states_say_what_may_still_happen() -> None:
    assert [JobState.QUEUED, JobState.RUNNING] == [state for state in JobState if state.open]
    assert not [state for state in JobState if state.open and state.ended]
