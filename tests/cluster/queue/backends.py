"""One face for the queue's implementations, so that one suite tests them all."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import Any

import redis

from cluster.clock import ManualClock
from cluster.models import Windows
from cluster.queue.entries import QueueEntry, QueueLimits
from cluster.queue.heartbeats import ReplicaBeat, RouterBeat, RouterBeatReply
from cluster.queue.memory.queue import MemoryBell, MemoryQueue, MemoryStore
from cluster.queue.redis.bell import RedisBell
from cluster.queue.redis.keys import pool_keys
from cluster.queue.redis.queue import RedisQueue
from penstock.models import ReplicaState, RequestClass
from tests.cluster.queue.servers import Server

POOL = "demo"
WIDE = Windows(sequences=4, kv_tokens=100_000, prefill_tokens=100_000)
KEPT_WHEN_IDLE = {
    *("pool", "load", "free", "registry", "replicas", "routers", "links", "reports", "control", "quarantined"),
    *("quotas", "outputs", "tenant_due", "ledger", "ledger_days", "keys", "key_due", "results"),
}
"""Keys that a pool without requests may have; those of the second row are bounded by time."""


@dataclass
class Backend:
    """Is an empty pool in one store."""

    clock: ManualClock
    server: Server | None = None
    store: MemoryStore = field(default_factory=MemoryStore)
    run_id: str = "run-1"
    open_queues: list[Any] = field(default_factory=list)
    open_bells: list[Any] = field(default_factory=list)

    def queue(self, limits: QueueLimits | None = None, pool: str = POOL) -> Any:
        """Open a client of the pool, as each process has one."""
        limits = limits or QueueLimits()
        if self.server is None:
            queue: Any = MemoryQueue(self.store, pool, limits)
        else:
            queue = RedisQueue(self.server.url, pool, limits, 10.0, clock=self.clock, run_id=lambda: self.run_id)
        self.open_queues.append(queue)
        return queue

    def bell(self, router_id: str) -> Any:
        """Open a router's bell."""
        bell: Any = MemoryBell(self.store, router_id) if self.server is None else RedisBell(self.server.url, router_id)
        self.open_bells.append(bell)
        return bell

    def restart(self) -> None:
        """Take a new run id with all data kept, as a server restarted from its file does."""
        self.run_id = uuid.uuid4().hex
        self.store.run_id = self.run_id

    def leftovers(self) -> set[str]:
        """Name the keys, or twin's fields, that hold something of requests."""
        if self.server is None:
            return _memory_leftovers(self.store)
        client = self.server.client()
        try:
            names = {name.decode().split("}:")[1] for name in client.keys("*")}
        finally:
            client.close()
        return names - KEPT_WHEN_IDLE

    def sizes(self) -> dict[str, int]:
        """Count what each key, or twin's field, holds; without the empty ones."""
        if self.server is None:
            sizes = memory_sizes(self.store)
        else:
            client = self.server.client()
            try:
                sizes = redis_sizes(client)
            finally:
                client.close()
        return {name: n for name, n in sizes.items() if n}

    async def close(self) -> None:
        """Close every client."""
        for client in (*self.open_queues, *self.open_bells):
            await client.close()
        if self.server is not None:
            flush(self.server)


def flush(server: Server) -> None:
    """Empty a server."""
    client: redis.Redis = server.client()
    try:
        client.flushall()
    finally:
        client.close()


HASHES = {
    *("entries", "load", "registry", "keys", "skips", "prefs", "bells"),
    *("results", "quotas", "outputs", "open_counts", "ledger", "outstanding", "reports", "control", "quarantined"),
}


def redis_sizes(client: redis.Redis, pool: str = POOL) -> dict[str, int]:
    """Count what each key holds."""
    names = [key.split("}:")[1] for key in pool_keys(pool)]
    with client.pipeline(transaction=False) as pipeline:
        for name, key in zip(names, pool_keys(pool), strict=True):
            if name == "pool":
                pipeline.exists(key)
            elif name in HASHES:
                pipeline.hlen(key)
            else:
                pipeline.zcard(key)
        return dict(zip(names, map(int, pipeline.execute()), strict=True))


def memory_sizes(store: MemoryStore, pool: str = POOL) -> dict[str, int]:
    """Count what the twin holds, under the names of the keys."""
    state = store._pools[pool]
    owned = state.owners.values()
    waiting = sum(state.line_counts)
    return {
        "pool": 1,
        "entries": len(state.entries),
        "line": waiting,
        **{f"active:{c}": len(state.active[c]) for c in range(3)},
        **{f"idle:{c}": len(state.idle[c]) for c in range(3)},
        "owners": sum(
            len(o.waiting) + len(o.parked) + len(o.granted) + len(o.running) + len(o.orders) + len(o.moved)
            for o in owned
        ),
        "slots": sum(len(s.granted) + len(s.started) for s in state.slots.values()),
        "load": len(state.loads),
        "free": len(state.free),
        "registry": len(state.loads),
        "replicas": len(state.replicas),
        "routers": len(state.routers),
        "parted": len(state.parted),
        "links": sum(map(len, state.links.values())),
        "keys": len(state.client_keys),
        "skips": len(state.skips) + len(state.late_skips),
        "prefs": len(state.preferences),
        "deadlines": len(state.deadlines),
        "bells": len(state.bells),
        "key_due": len(state.key_due),
        "results": len(state.results),
        "quotas": len(state.quotas),
        "outputs": len(state.outputs),
        "open_counts": len(state.open_counts),
        "tenant_due": len(state.tenant_due),
        "ledger": len(state.ledger),
        "ledger_days": len(state.ledger),
        "outstanding": len(state.outstanding),
        "reports": len(state.reports),
        "control": len(state.control),
        "quarantined": len(state.quarantined),
    }


def _memory_leftovers(store: MemoryStore) -> set[str]:
    return {name for pool in store._pools for name, n in memory_sizes(store, pool).items() if n} - KEPT_WHEN_IDLE


class Scene:
    """Acts the routers and replicas of a pool."""

    def __init__(self, queue: Any, clock: ManualClock) -> None:
        self.queue = queue
        self.clock = clock
        self.replicas: dict[str, Windows] = {}
        self.routers: list[str] = []

    async def start(self, replicas: dict[str, Windows], routers: tuple[str, ...] = ("A",)) -> None:
        """Bring replicas and routers up, with the amnesty of a fresh pool over."""
        self.replicas, self.routers = dict(replicas), list(routers)
        for _ in range(10):
            await self.beat()
            self.clock.advance(1)
        await self.beat()

    async def beat(self, *, routers: list[str] | None = None, replicas: list[str] | None = None) -> None:
        """Have everybody, or those named, send a heartbeat; replicas report what nobody else can know as running."""
        for name in self.replicas if replicas is None else replicas:
            await self.beat_replica(name)
        for name in self.routers if routers is None else routers:
            await self.beat_router(name)

    async def beat_replica(self, name: str, running: tuple[tuple[str, str], ...] = (), **changes: Any) -> None:
        """Send a replica's heartbeat."""
        fields: dict[str, Any] = {"record": b"record", "state": ReplicaState.READY, "windows": self.replicas.get(name)}
        fields.update(changes)
        await self.queue.heartbeat_replica(ReplicaBeat(name, running=running, **fields))

    async def beat_router(
        self,
        name: str,
        started: tuple[tuple[str, str], ...] = (),
        connected: tuple[str, ...] | None = None,
        positions_of: tuple[str, ...] = (),
        busy: bool = False,
    ) -> RouterBeatReply:
        """Send a router's heartbeat."""
        links = tuple(self.replicas) if connected is None else connected
        reply: RouterBeatReply = await self.queue.heartbeat_router(
            RouterBeat(name, links, started, positions_of=positions_of, busy=busy)
        )
        return reply

    async def pass_time(self, seconds: float, *, routers: list[str], replicas: list[str], **running: Any) -> None:
        """Let time pass in half-second steps while those named keep their leases."""
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            for name in replicas:
                await self.beat_replica(name, running=tuple(running.get("running", {}).get(name, ())))
            for name in routers:
                await self.beat_router(name)


def entry(request_id: str, **changes: Any) -> QueueEntry:
    """Build an entry with small numbers."""
    fields: dict[str, Any] = {
        "attempt_base": f"base-{request_id}",
        "tenant": "acme",
        "request_class": RequestClass.STANDARD,
        "prompt_tokens": 10,
        "expected_tokens": 10,
        "kv_tokens": 20,
    }
    fields.update(changes)
    return QueueEntry(request_id, **fields)


async def turns(n: int = 3) -> None:
    """Let the loop run what is ready."""
    for _ in range(n):
        await asyncio.sleep(0)
