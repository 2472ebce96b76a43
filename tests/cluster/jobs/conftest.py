from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from cluster.clock import ManualClock
from cluster.jobs.contract import JobLimits
from cluster.jobs.redis.keys import JOB_KEYS, SHARED_KEYS, job_keys, shared_key
from cluster.jobs.redis.store import RedisJobStore
from cluster.redis.in_process.server import InProcessRedis
from tests.cluster.queue.backends import ask, flush
from tests.cluster.queue.servers import Server
from tests.support.stores import IN_PROCESS, KINDS

POOL = "demo"


@dataclass
class Backend:
    """An empty job store of one kind."""

    clock: ManualClock
    server: Server | None
    local: InProcessRedis
    opened: list[Any] = field(default_factory=list)

    @property
    def target(self) -> Any:
        """What stores connect to."""
        return self.local if self.server is None else self.server.url

    def ask(self, *words: str | bytes | float) -> Any:
        """Run one command."""
        return ask(self.local if self.server is None else self.server, *words)

    def store(self, limits: JobLimits | None = None) -> Any:
        """Open a client, as each router has one."""
        store = RedisJobStore(self.target, POOL, limits, 10.0, clock=self.clock)
        self.opened.append(store)
        return store

    def lose(self, part: str, job_id: str = "j") -> None:
        """Delete one key, of a job or of all jobs, as an eviction does."""
        key = shared_key(POOL, part) if part in SHARED_KEYS else job_keys(POOL, job_id)[JOB_KEYS.index(part)]
        assert 1 == self.ask("DEL", key)

    def keys(self) -> set[str]:
        """Name what is stored."""
        return {name.decode() for name in self.ask("KEYS", "*")}


@pytest.fixture(params=[IN_PROCESS, *KINDS])
async def backend(request: pytest.FixtureRequest, redis_servers: dict[str, Server]) -> AsyncIterator[Backend]:
    """An empty store of each kind."""
    clock = ManualClock()
    server = None if request.param == IN_PROCESS else redis_servers[request.param]
    if server is not None:
        flush(server)
    backend = Backend(clock, server, InProcessRedis(clock))
    yield backend
    for store in backend.opened:
        await store.close()
