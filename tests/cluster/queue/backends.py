"""One face for the servers of a queue, in this process or not, so that one suite tests it on all."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import redis

from cluster.clock import ManualClock
from cluster.models import Windows
from cluster.queue.entries import QueueEntry, QueueLimits
from cluster.queue.heartbeats import ReplicaBeat, RouterBeat, RouterBeatReply
from cluster.queue.redis.bell import RedisBell
from cluster.queue.redis.keys import pool_keys
from cluster.queue.redis.queue import RedisQueue
from cluster.redis.in_process.server import InProcessRedis
from cluster.redis.keys import pool_key
from penstock.models import ReplicaState, RequestClass
from tests.cluster.queue.servers import Server

POOL = "demo"
WIDE = Windows(sequences=4, kv_tokens=100_000, prefill_tokens=100_000)
KEPT_WHEN_IDLE = {
    *("pool", "load", "free", "registry", "replicas", "routers", "links", "reports", "control", "quarantined"),
    *("quotas", "outputs", "tenant_due", "ledger", "ledger_days", "keys", "key_due", "results", "meters", "budgets"),
}
"""Keys that a pool without requests may have; those of the second row are bounded by time."""


@dataclass
class Backend:
    """An empty pool in one store: `server`, or `store` in this process."""

    clock: ManualClock
    server: Server | None = None
    store: InProcessRedis = field(default_factory=InProcessRedis)
    run_id: str = "run-1"
    open_queues: list[Any] = field(default_factory=list)
    open_bells: list[Any] = field(default_factory=list)

    def queue(self, limits: QueueLimits | None = None, pool: str = POOL) -> Any:
        """Open a client of the pool, as each process has one."""
        limits = limits or QueueLimits()
        if self.server is None:
            queue = RedisQueue(self.store, pool, limits)
        else:
            queue = RedisQueue(self.server.url, pool, limits, 10.0, clock=self.clock, run_id=lambda: self.run_id)
        self.open_queues.append(queue)
        return queue

    def bell(self, router_id: str) -> Any:
        """Open a router's bell."""
        bell = RedisBell(self.store if self.server is None else self.server.url, router_id, 10.0)
        self.open_bells.append(bell)
        return bell

    def restart(self) -> None:
        """Take a new run id with all data kept, as a server restarted from its file does."""
        self.run_id = uuid.uuid4().hex
        self.store.restart(self.run_id)

    def ask(self, *words: str | bytes | float) -> Any:
        """Run one command."""
        return ask(self.store if self.server is None else self.server, *words)

    def relieve(self, relief: str, until_ms: int) -> None:
        """Give a relief, as the autoscaler's store does."""
        self.ask("HSET", pool_key(POOL, "control"), "relief", relief, "relief_until", until_ms)

    def leftovers(self) -> set[str]:
        """Name the keys that hold something of requests."""
        return {name.decode().split("}:")[1] for name in self.ask("KEYS", "*")} - KEPT_WHEN_IDLE

    def sizes(self) -> dict[str, int]:
        """Count what each key holds; without the empty ones."""
        return {name: n for name, n in sizes(self.ask).items() if n}

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
    *("meters", "budgets"),
}


def ask(store: InProcessRedis | Server, *words: str | bytes | float) -> Any:
    """Run one command."""
    if isinstance(store, InProcessRedis):
        return store.execute(*words)
    with contextlib.closing(store.client()) as client:
        return client.execute_command(*words)


def sizes(command: Callable[..., Any], pool: str = POOL) -> dict[str, int]:
    """Count what each key holds. `command` runs one."""
    names = [key.split("}:")[1] for key in pool_keys(pool)]
    return {
        name: int(command("EXISTS" if name == "pool" else "HLEN" if name in HASHES else "ZCARD", key))
        for name, key in zip(names, pool_keys(pool), strict=True)
    }


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
