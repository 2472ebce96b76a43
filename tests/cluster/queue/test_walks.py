"""The scripts answer alike in process and in a server; and the queue's promises hold in every state reached."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cluster.clock import ManualClock
from cluster.errors import KeyReusedError, QueueFullError, QuotaExceededError
from cluster.models import Windows
from cluster.queue.entries import NO_QUOTA, Grant, Mail, Mark, QueueEntry, QueueLimits, Quota, Settlement, Submitted
from cluster.queue.heartbeats import ReplicaBeat, RouterBeat, RouterBeatReply
from cluster.queue.redis.queue import RedisQueue
from cluster.queue.redis.scripts import load_constants
from cluster.redis.in_process.server import InProcessRedis
from cluster.redis.keys import pool_key
from penstock.models import ReplicaState, RequestClass
from tests.cluster.queue.backends import KEPT_WHEN_IDLE, POOL, flush, sizes
from tests.cluster.queue.servers import Server
from tests.support.stores import KINDS

pytestmark = pytest.mark.every_store("every script, in random walks")

ROUTERS = ("A", "B", "C")
REPLICAS = ("r1", "r2", "r3")
TENANTS = ("acme", "beta", "größe")
WINDOWS = (
    Windows(2, 200, 100),
    Windows(3, 1000, 60),
    Windows(1, 100, 1000),
    Windows(4, 400, 200),
    Windows(0, 400, 200),
)

QUOTAS = (
    Quota(tokens_per_minute=2000, requests_per_minute=60),
    Quota(tokens_per_minute=300, strict=True),
    Quota(requests_per_minute=20, concurrency=4),
    Quota(concurrency=2, max_waiting=1),
)
Answer = tuple[str, Any]
Ask = Callable[[Any], Awaitable[Any]]
NUMBERS = {name: int(number) for name, number in load_constants().items()}
ENTRY = {name: NUMBERS[name] for name in ("OWNER", "TENANT", "ATTEMPT", "STATE")}
# Python counts from 0.
LOAD_HELD, P_YIELDING, P_RESULTS = (NUMBERS[name] - 1 for name in ("HELD", "P_YIELDING", "P_RESULTS"))


class Pair:
    """Asks both servers and holds their answers against each other."""

    def __init__(self, server: Server, seed: int) -> None:
        self.random = random.Random(seed)
        self.blind = self.random.choice(("", "", *ROUTERS))
        """A router that reaches one replica or none, so that what waits with it stands in front of others."""
        limits = QueueLimits(
            lease_ms=4000,
            attach_grace_ms=3000,
            max_waiting=self.random.choice((5, 30, 50)),
            lookahead=1 if self.blind else self.random.choice((1, 2, 4)),
            grant_heartbeats=self.random.choice((1, 2, 3)),
            class_shares=(0.0, 0.3, 0.1),
            preempt_after_ms=self.random.choice((0, 300, 1000)),
            preempt_quantum_ms=self.random.choice((0, 500)),
            max_preemptions=self.random.choice((1, 2)),
            result_ms=self.random.choice((0, 2000, 600_000)),
            max_result_bytes=25,
            ledger_days=self.random.choice((0, 1, 30)),
        )
        self.quotas = {name: self.random.choice((NO_QUOTA, NO_QUOTA, *QUOTAS)) for name in TENANTS}
        self.calm = self.random.random() < 0.6
        """Replicas keep their windows and report truly, links are up, so that queues build up and wear on."""
        self.windows = {name: self.random.choice(WINDOWS[:4]) for name in REPLICAS}
        self.clock = ManualClock()
        self.store = InProcessRedis(self.clock)
        self.counter = server.client()
        self.local = RedisQueue(self.store, POOL, limits)
        self.redis = RedisQueue(server.url, POOL, limits, 10.0, clock=self.clock, run_id=lambda: self.store.run_id)
        self.minted = 0
        self.entries: dict[str, tuple[str, QueueEntry]] = {}
        self.attempts: dict[str, Grant] = {}
        self.started: dict[str, list[tuple[str, str]]] = {name: [] for name in ROUTERS}
        self.kept: list[Ask] | None = None
        """What `both` is asked, while it keeps questions for a turn."""

    async def both(self, ask: Ask) -> Any:
        """Ask both; returns the answer they share."""
        if self.kept is not None:
            self.kept.append(ask)
            return None
        local, stored = await _answer(ask, self.local), await _answer(ask, self.redis)
        assert local == stored
        self.compare()
        self.learn(stored[1])
        return stored[1]

    def compare(self) -> None:
        """Hold what the two store against each other."""
        for name in ("pool", "entries", "line", "owners", "slots", "load"):
            assert (name, self.dump(name)) == (name, self.dump_stored(name))
        assert sizes(self.store.execute) == sizes(self.counter.execute_command)
        self.check_promises()

    def learn(self, answer: Any) -> None:
        """Note grants, as routers do."""
        if isinstance(answer, Submitted) and answer.grant:
            self.attempts[answer.grant.request_id] = answer.grant
        if isinstance(answer, RouterBeatReply):
            answer = answer.mail
        if isinstance(answer, Mail):
            self.attempts.update({grant.request_id: grant for grant in answer.grants})

    def check_promises(self) -> None:
        """Look at what is stored: one place per entry, and no replica above its sequences by grants."""
        in_flight = {name for name, entry in self.stored().items() if entry["STATE"] == "f"}
        slots = [member.split("\0") for member in _texts(self.dump("slots"))]
        waiting = [member.split("\0")[3] for member in _texts(self.dump("line"))]
        assert sorted(slot[2] for slot in slots) == sorted(in_flight)
        assert len(waiting) == len(set(waiting))
        assert not set(waiting) & in_flight
        for replica, load in self.dump("load").items():
            assert load[LOAD_HELD] == sum(slot[0] == replica.decode() for slot in slots)

    def dump(self, name: str) -> Any:
        """Read a key of the one in process."""
        return _dump(name, self.store.execute)

    def dump_stored(self, name: str) -> Any:
        """Read a key of the server."""
        return _dump(name, self.counter.execute_command)

    def stored(self) -> dict[str, dict[str, Any]]:
        """Read the entries."""
        return {
            name.decode(): {field: _text(entry[number - 1]) for field, number in ENTRY.items()}
            for name, entry in self.dump("entries").items()
        }

    @property
    def pool(self) -> list[Any]:
        """Read the pool's record."""
        record: list[Any] = self.dump("pool")
        return record

    # --- what happens ---

    async def turn(self) -> None:
        """Make several calls in one turn of the loop: the server gets them in one script call, the one in process gets
        them one by one.
        """
        self.kept = kept = []
        for _ in range(self.random.choice((2, 3, 8, 40))):
            await getattr(self, self.random.choice(STEPS_OF_A_TURN))()
        self.kept = None
        local = [await _answer(ask, self.local) for ask in kept]
        stored = await asyncio.gather(*(_answer(ask, self.redis) for ask in kept))
        assert local == stored
        self.compare()
        for _, answer in stored:
            self.learn(answer)

    async def crowd(self) -> None:
        if self.blind:
            for _ in range(12):
                await self.submit(self.blind)

    async def submit(self, router: str = "") -> None:
        rnd = self.random
        self.minted += 1
        name = f"q{self.minted}"
        tenant = rnd.choice(TENANTS)
        if rnd.random() < 0.2:
            # A choice of this request or of one before it; the first alone carries the key.
            name = f"q{max(1, self.minted - rnd.choice((0, 1, 2)))}/{rnd.choice((0, 0, 1, 2))}"
        new = QueueEntry(
            name,
            f"base{self.minted}",
            tenant,
            rnd.choice(list(RequestClass)),
            prompt_tokens=rnd.choice((0, 10, 30, 90, 150)),
            expected_tokens=rnd.choice((1, 7, 50, 300)),
            kv_tokens=rnd.choice((10, 60, 150, 390)),
            start_within_ms=rnd.choice((0, 0, 0, 1500, 6000)),
            late_after_ms=rnd.choice((0, 0, 700, 3000)),
            client_key=rnd.choice(("", "", "k1", "k2")) if name.endswith("/0") or "/" not in name else "",
            preferred_replicas=tuple(rnd.sample(REPLICAS, rnd.choice((0, 0, 1, 2)))),
            weight=rnd.choice((1.0, 1.0, 3.0, 0.7)),
            resume=rnd.random() < 0.1,
            max_tokens=rnd.choice((1, 50, 4096)),
            quota=self.quotas[tenant],
            choices=rnd.choice((1, 1, 1, 0, 3)),
            digest=rnd.choice(("", "", "d2")),
        )
        router = router or rnd.choice(ROUTERS)
        self.entries[name] = (router, new)
        await self.both(lambda queue: queue.submit(router, new))

    async def submit_again(self) -> None:
        if self.entries:
            router, old = self.random.choice(list(self.entries.values()))
            if self.random.random() < 0.4:
                # As a router to which the client came back.
                router = self.random.choice(ROUTERS)
            await self.both(lambda queue: queue.submit(router, old))

    async def come_back(self) -> None:
        """As to a request on its way out, and perhaps to be refused."""
        rnd, known = self.random, self.stored()
        out = sorted(name for name, entry in known.items() if entry["STATE"] == "o" and name in self.entries)
        if out:
            name, router = rnd.choice(out), rnd.choice(ROUTERS)
            old = self.entries[name][1]
            if rnd.random() < 0.3:
                request = name.split("/")[0]
                await self.both(lambda queue: queue.finish_key(router, old.tenant, old.client_key, request, b"result"))
            new = replace(old, quota=rnd.choice((NO_QUOTA, *QUOTAS)), choices=rnd.choice((1, 3)))
            self.entries[name] = (router, new)
            await self.both(lambda queue: queue.submit(router, new))

    async def quarantine(self) -> None:
        rnd = self.random
        mark = Mark(rnd.choice((b"x", b"\x00\xff", b"y")), "incident", rnd.choice((0, 500, 3000)))
        given = rnd.choice((None, mark))
        await self.both(lambda queue: queue.quarantine("A", given))

    async def release(self) -> None:
        router, name, attempt = self.pick()
        used = self.used()
        await self.both(lambda queue: queue.release(router, name, attempt, used))

    def used(self) -> Settlement:
        rnd = self.random
        return Settlement(rnd.choice((0, 3, 400, 70_000)), 1, 7, rnd.choice((0, 5)), rnd.choice((0.0, 0.1)), 0.3)

    async def requeue(self) -> None:
        router, name, attempt = self.pick()
        used = self.used()
        await self.both(lambda queue: queue.requeue(router, name, attempt, used))

    async def adopt(self) -> None:
        _, name, _ = self.pick()
        router = self.random.choice(ROUTERS)
        tenant = self.entries[name][1].tenant if name in self.entries else "acme"
        adopted = await self.both(lambda queue: queue.adopt(router, tenant, name))
        if adopted is not None:
            self.entries[name] = (router, self.entries[name][1])
            if adopted.grant:
                self.attempts[name] = adopted.grant

    async def answer_moves(self, router: str = "") -> None:
        router = router or self.random.choice(ROUTERS)
        mail = await self.both(lambda queue: queue.collect(router))
        for order in mail.orders:
            if order.kind == "moved":
                await self.both(lambda queue, order=order: queue.release(router, order.request_id, "", Settlement(0)))

    async def finish_key(self) -> None:
        _, name, _ = self.pick()
        if name not in self.entries:
            return
        router, old = self.entries[name]
        result = self.random.choice((b"", b"result", b"r" * 20))
        request = name.split("/")[0]
        await self.both(lambda queue: queue.finish_key(router, old.tenant, old.client_key, request, result))

    async def find_key(self) -> None:
        _, name, _ = self.pick()
        if name in self.entries:
            old, digest = self.entries[name][1], self.random.choice(("", "d2"))
            key = old.client_key or "k1"
            await self.both(lambda queue: queue.find_key(old.tenant, key, name, digest))

    async def await_key(self) -> None:
        _, name, _ = self.pick()
        if name in self.entries:
            old, note = self.entries[name][1], self.random.random() < 0.5
            request, key = name.split("/")[0], old.client_key or "k1"
            await self.both(lambda queue: queue.await_key(old.tenant, key, request, note=note))

    async def holdings(self) -> None:
        router, limit = self.random.choice(ROUTERS), self.random.choice((2, 500))
        page = await self.both(lambda queue: queue.holdings(router, b"", limit))
        await self.both(lambda queue: queue.holdings(router, page.last, limit))

    async def usage(self) -> None:
        tenant, limit = self.random.choice(("", *TENANTS)), self.random.choice((1, 100))
        await self.both(lambda queue: queue.usage(tenant, 0, 10**6, limit))

    async def refuse(self) -> None:
        router, name, attempt = self.pick()
        await self.both(lambda queue: queue.refuse(router, name, attempt))

    async def cancel(self) -> None:
        rnd = self.random
        router, tenant = rnd.choice(ROUTERS), rnd.choice(TENANTS)
        by_key = rnd.random() < 0.3
        target = rnd.choice(("k1", "k2")) if by_key else self.pick()[1]
        if not by_key and target in self.entries and rnd.random() < 0.8:
            tenant = self.entries[target][1].tenant
        await self.both(lambda queue: queue.cancel(router, tenant, target, by_key=by_key))

    async def withdraw(self) -> None:
        router, name, _ = self.pick()
        used = self.random.choice((None, Settlement(7, 1, 10, 4, 0.25, 1.5)))
        refused = used is None and self.random.random() < 0.5
        await self.both(lambda queue: queue.withdraw(router, name, used, refused=refused))

    async def collect(self) -> None:
        router = self.random.choice(ROUTERS)
        await self.both(lambda queue: queue.collect(router))

    async def beat_router(self, router: str = "") -> None:
        rnd = self.random
        router = router or rnd.choice(ROUTERS)
        connected = REPLICAS if self.calm else tuple(rnd.sample(REPLICAS, rnd.choice((1, 3, 3, 3))))
        if router == self.blind:
            connected = rnd.choice(((), (), REPLICAS[:1]))
        known = [(g.request_id, g.attempt) for g in self.attempts.values()]
        started = tuple(rnd.sample(known, min(len(known), rnd.choice((0, 1, 4)))))
        version = rnd.choice((-1, 1, 1_000_003))
        report = rnd.choice((b"", b"seen", b"\x00\xff"))
        asked = tuple(rnd.sample(list(self.entries), min(len(self.entries), rnd.choice((0, 2, 50)))))
        beat = RouterBeat(router, connected, started, version, report, asked, busy=self.random.random() < 0.2)
        await self.both(lambda queue: queue.heartbeat_router(beat))

    async def beat_replica(self, replica: str = "") -> None:
        rnd = self.random
        replica = replica or rnd.choice(REPLICAS)
        there = [(g.request_id, g.attempt) for g in self.attempts.values() if g.replica_id == replica]
        if self.calm:
            known = self.stored()
            there = [pair for pair in there if pair[0] in known]
        running = tuple(rnd.sample(there, min(len(there), 8 if self.calm else rnd.choice((0, 1, 3, 8)))))
        prefilled = tuple(name for name, _ in there if rnd.random() < 0.3)
        beat = ReplicaBeat(
            replica,
            rnd.choice((b"record", b"record", b"\x00\xff other")),
            rnd.choice(
                (*[ReplicaState.READY] * (40 if self.calm else 8), ReplicaState.DRAINING, ReplicaState.STARTING)
            ),
            self.windows[replica] if self.calm else rnd.choice(WINDOWS),
            running,
            prefilled,
            None if self.calm else rnd.choice((None, None, 0, 45, 300)),
            {"load": 0.1},
            tuple(rnd.choice((0, 5, 30)) for _ in running) if rnd.random() < 0.8 else (),
            rnd.choice((None, None, 0, 1, 2)),
        )
        await self.both(lambda queue: queue.heartbeat_replica(beat))

    async def beat_all(self) -> None:
        for replica in REPLICAS:
            await self.beat_replica(replica)
        for router in ROUTERS:
            await self.beat_router(router)

    async def observe(self) -> None:
        await self.both(lambda queue: queue.observe())

    async def line(self) -> None:
        asked = tuple(self.random.sample(list(self.entries), min(len(self.entries), 5)))
        await self.both(lambda queue: queue.line(asked))

    async def steer(self) -> None:
        # As the autoscaler's store does it.
        relief, until = self.random.choice(("none", "latency", "preempt_batch", "shed")), self.clock.wall_ms() + 3000
        for command in (self.counter.execute_command, self.store.execute):
            command("HSET", pool_key(POOL, "control"), "relief", relief, "relief_until", until)

    async def reap(self) -> None:
        await self.both(lambda queue: queue.reap())

    async def wait(self) -> None:
        self.clock.advance(self.random.choice((0.001, 0.3, 0.9, 1.9)))

    async def silence(self) -> None:
        # Some die: long enough for a lease, while the others' heartbeats keep the pool's tick.
        rnd = self.random
        routers, replicas = rnd.sample(ROUTERS, rnd.choice((1, 2))), rnd.sample(REPLICAS, rnd.choice((1, 2, 3)))
        for _ in range(rnd.choice((3, 6))):
            self.clock.advance(1.4)
            for router in routers:
                await self.beat_router(router)
            for replica in replicas:
                await self.beat_replica(replica)

    async def jump(self) -> None:
        self.clock.jump_wall(self.random.choice((-30, -1, 7, 60)))

    async def restart(self) -> None:
        self.store.restart()

    async def retire(self) -> None:
        if self.random.random() < 0.5:
            router = self.random.choice(ROUTERS)
            keep = self.random.random() < 0.5
            await self.both(lambda queue: queue.retire_router(router, keep=keep))
        else:
            replica = self.random.choice(REPLICAS)
            await self.both(lambda queue: queue.retire_replica(replica))

    def pick(self) -> tuple[str, str, str]:
        """Choose an entry, mostly with its owner and true attempt."""
        rnd = self.random
        if not self.entries:
            return "A", "nobody", "nobody.1"
        pool = list(self.attempts) if self.attempts and rnd.random() < 0.8 else list(self.entries)
        name = rnd.choice(pool)
        router = self.entries[name][0] if rnd.random() < 0.95 else rnd.choice(ROUTERS)
        attempt = self.attempts[name].attempt if name in self.attempts and rnd.random() < 0.85 else ""
        return router, name, attempt

    async def finish(self) -> None:
        """End everything as owners do; nothing may be left."""
        for _ in range(40):
            for name, (router, old) in list(self.entries.items()):
                # A name that was taken again with another tenant is the first one's.
                held = self.stored().get(name)
                tenant = held["TENANT"] if held else old.tenant
                await self.both(lambda queue, n=name, t=tenant, router=router: queue.cancel(router, t, n))
                stored = self.stored().get(name)
                if stored is None:
                    del self.entries[name]
                    continue
                owner, attempt = stored["OWNER"], stored["ATTEMPT"] if stored["STATE"] == "f" else ""
                self.entries[name] = (owner, old)
                await self.both(lambda queue, o=owner, n=name, a=attempt: queue.release(o, n, a, Settlement(1)))
            if not self.entries:
                break
        for router in ROUTERS:
            await self.answer_moves(router)
        await self.check_leftovers(KEPT_WHEN_IDLE)
        # What is bounded by time goes with time; the ledger may be kept for longer than this.
        self.clock.advance(1_000_000)
        for _ in range(6):
            await self.beat_all()
            self.clock.advance(1)
        await self.both(lambda queue: queue.reap())
        timed = {"quotas", "outputs", "tenant_due", "keys", "key_due", "results"}
        await self.check_leftovers(KEPT_WHEN_IDLE - timed)
        assert self.pool[P_YIELDING] == 0
        assert self.pool[P_RESULTS] == 0

    async def check_leftovers(self, kept: set[str]) -> None:
        found = sizes(self.counter.execute_command)
        assert {name: n for name, n in found.items() if n and name not in {*kept, "parted", "bells"}} == {}


def _dump(name: str, command: Callable[..., Any]) -> Any:
    """Read a key: records unpacked, a sorted set with its scores."""
    key = pool_key(POOL, name)
    if name == "pool":
        return _unpack(command("GET", key) or b"\x90")
    if name in ("entries", "load"):
        found = command("HGETALL", key)
        pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        return {field: _unpack(packed) for field, packed in pairs}
    return command("ZRANGE", key, 0, -1)


def _unpack(packed: bytes) -> list[Any]:
    """Read a record. Lua packs one with gaps as a map."""
    record = msgpack.unpackb(packed, raw=True, strict_map_key=False)
    return [record.get(number) for number in range(1, max(record) + 1)] if isinstance(record, dict) else record


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _texts(values: list[bytes]) -> list[str]:
    return [value.decode() for value in values]


async def _answer(ask: Ask, queue: Any) -> Answer:
    try:
        return "answer", await ask(queue)
    except (QueueFullError, QuotaExceededError, KeyReusedError) as error:
        return type(error).__name__, str(error)


STEPS_OF_A_TURN = (
    *["submit"] * 6,
    "submit_again",
    *["release"] * 5,
    *("refuse", "requeue", "withdraw", "cancel", "collect"),
)
STEPS = (
    *["submit"] * 14,
    *["turn"] * 4,
    *["crowd"] * 2,
    *["submit_again"] * 2,
    "come_back",
    "quarantine",
    *["release"] * 6,
    "refuse",
    "requeue",
    *["adopt"] * 2,
    "answer_moves",
    *["finish_key"] * 2,
    "find_key",
    "await_key",
    "usage",
    "holdings",
    *["cancel"] * 2,
    *["withdraw"] * 2,
    "collect",
    *["beat_router"] * 3,
    *["beat_replica"] * 4,
    "beat_all",
    "reap",
    "observe",
    "line",
    "steer",
    *["wait"] * 3,
    *["silence"] * 2,
    "jump",
    "restart",
    "retire",
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_redis_in_process_and_in_a_server_answer_alike(kind: str, redis_servers: dict[str, Server]) -> None:
    """Random operations get equal answers and leave equal amounts of state, and in the end nothing."""
    server = redis_servers[kind]

    @settings(
        max_examples=30 if kind == "redis-7.0" else 8,
        deadline=None,
        database=None,
        # Shrinking takes minutes and can be had later, from the blob.
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(seed=st.integers(0, 2**32), steps=st.lists(st.sampled_from(STEPS), min_size=30, max_size=200))
    def explore(seed: int, steps: list[str]) -> None:
        asyncio.run(_play(server, seed, steps))

    explore()


async def _play(server: Server, seed: int, steps: list[str]) -> None:
    flush(server)
    pair = Pair(server, seed)
    try:
        await pair.beat_all()
        for step in steps:
            await getattr(pair, step)()
        await pair.finish()
    finally:
        await pair.redis.close()
        pair.counter.close()
