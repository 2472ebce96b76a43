from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cluster.clock import ManualClock
from cluster.redis.in_process.server import InProcessRedis
from tests.cluster.queue.backends import Backend, Scene, flush
from tests.cluster.queue.servers import Server
from tests.support.stores import KINDS


@pytest.fixture(params=["in-process", *KINDS])
async def backend(request: pytest.FixtureRequest, redis_servers: dict[str, Server]) -> AsyncIterator[Backend]:
    """An empty store of each kind."""
    async for backend in open_backend(request.param, redis_servers):
        yield backend


@pytest.fixture(params=KINDS)
async def redis_backend(request: pytest.FixtureRequest, redis_servers: dict[str, Server]) -> AsyncIterator[Backend]:
    """An empty store of each kind of Redis."""
    async for backend in open_backend(request.param, redis_servers):
        yield backend


@pytest.fixture
def scene(backend: Backend) -> Scene:
    """A pool with default limits."""
    return Scene(backend.queue(), backend.clock)


async def open_backend(kind: str, servers: dict[str, Server]) -> AsyncIterator[Backend]:
    clock = ManualClock()
    if kind == "in-process":
        backend = Backend(clock, store=InProcessRedis(clock))
    else:
        server = servers[kind]
        flush(server)
        backend = Backend(clock, server=server)
    yield backend
    await backend.close()
