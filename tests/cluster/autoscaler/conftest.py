from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from cluster.announced.redis.store import RedisAnnouncedStore
from cluster.autoscaler.redis.store import RedisControlStore
from cluster.clock import ManualClock
from cluster.queue.redis.queue import RedisQueue
from cluster.redis.in_process.server import InProcessRedis
from cluster.rollout.redis.store import RedisRolloutStore
from tests.cluster.queue.backends import POOL, flush
from tests.cluster.queue.servers import Server
from tests.support.stores import KINDS


@dataclass
class Backend:
    """An empty pool, as autoscalers and queues see it."""

    clock: ManualClock
    server: Server | None
    memory: InProcessRedis
    opened: list[Any] = field(default_factory=list)

    def store(self) -> Any:
        """Open a control store, as each process has one."""
        store: Any = (
            RedisControlStore(self.memory, POOL, clock=self.clock)
            if self.server is None
            else RedisControlStore(self.server.url, POOL, 10.0, clock=self.clock)
        )
        self.opened.append(store)
        return store

    def queue(self, name: str = POOL) -> Any:
        """Open the pool's queue, or that of a cell by its name."""
        queue: Any = (
            RedisQueue(self.memory, name)
            if self.server is None
            else RedisQueue(self.server.url, name, None, 10.0, clock=self.clock, run_id=lambda: "run-1")
        )
        self.opened.append(queue)
        return queue

    def rollout(self) -> Any:
        """Open the record of the pool's roll-out."""
        target: Any = self.memory if self.server is None else self.server.url
        store = RedisRolloutStore(target, POOL, 10.0, clock=self.clock)
        self.opened.append(store)
        return store

    def announced(self) -> Any:
        """Open the announced load of the pool."""
        target: Any = self.memory if self.server is None else self.server.url
        store = RedisAnnouncedStore(target, POOL, 10.0, clock=self.clock)
        self.opened.append(store)
        return store

    def forget(self) -> None:
        """Lose everything."""
        if self.server is None:
            self.memory.restart(forget=True)
        else:
            flush(self.server)


@pytest.fixture(params=["in-process", *KINDS])
async def backend(request: pytest.FixtureRequest, redis_servers: dict[str, Server]) -> AsyncIterator[Backend]:
    """An empty store of each kind."""
    clock = ManualClock()
    server = None if request.param == "in-process" else redis_servers[request.param]
    if server is not None:
        flush(server)
    backend = Backend(clock, server, InProcessRedis(clock))
    yield backend
    for one in backend.opened:
        await one.close()
    backend.forget()


@pytest.fixture
def local() -> Backend:
    """The store in process alone."""
    clock = ManualClock()
    return Backend(clock, None, InProcessRedis(clock))
