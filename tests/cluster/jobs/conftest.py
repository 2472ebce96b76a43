from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from cluster.clock import ManualClock
from cluster.jobs.contract import JobLimits
from cluster.jobs.memory.store import MemoryJobs, MemoryJobStore
from cluster.jobs.redis.keys import JOB_KEYS, SHARED_KEYS, job_keys, shared_key
from cluster.jobs.redis.store import RedisJobStore
from tests.cluster.queue.backends import flush
from tests.cluster.queue.servers import Server, running
from tests.support.stores import KINDS

POOL = "demo"


@dataclass
class Backend:
    """Is an empty job store of one kind."""

    clock: ManualClock
    server: Server | None
    shared: MemoryJobs
    opened: list[Any] = field(default_factory=list)

    def store(self, limits: JobLimits | None = None) -> Any:
        """Open a client, as each router has one."""
        if self.server is None:
            store: Any = MemoryJobStore(self.shared, limits)
        else:
            store = RedisJobStore(self.server.url, POOL, limits, 10.0, clock=self.clock)
        self.opened.append(store)
        return store

    def lose(self, part: str, job_id: str = "j") -> None:
        """Delete one key, of a job or of all jobs, as an eviction does. In memory there are only those of a job."""
        if self.server is not None:
            key = shared_key(POOL, part) if part in SHARED_KEYS else job_keys(POOL, job_id)[JOB_KEYS.index(part)]
            with contextlib.closing(self.server.client()) as client:
                assert 1 == client.delete(key)
        elif part == "record":
            del self.shared.jobs[job_id]
        elif part in JOB_KEYS:
            stored = getattr(self.shared.jobs[job_id], "blocks" if part == "items" else part)
            assert stored
            stored.clear()

    def keys(self) -> set[str]:
        """Name what is stored."""
        if self.server is None:
            return set(self.shared.jobs)
        with contextlib.closing(self.server.client()) as client:
            return {name.decode() for name in client.keys("*")}


@pytest.fixture(scope="session")
def job_servers() -> Iterator[dict[str, Server]]:
    """Servers that are started once, by kind, when a test first asks."""
    with contextlib.ExitStack() as stack:

        class Lazy(dict[str, Server]):
            def __missing__(self, kind: str) -> Server:
                self[kind] = server = stack.enter_context(running(kind))
                return server

        yield Lazy()


@pytest.fixture(params=["memory", *KINDS])
async def backend(request: pytest.FixtureRequest, job_servers: dict[str, Server]) -> AsyncIterator[Backend]:
    """An empty store of each kind."""
    clock = ManualClock()
    server = None if request.param == "memory" else job_servers[request.param]
    if server is not None:
        flush(server)
    backend = Backend(clock, server, MemoryJobs(clock))
    yield backend
    for store in backend.opened:
        await store.close()
