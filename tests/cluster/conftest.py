from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cluster.clock import ManualClock
from cluster.redis.in_process.server import InProcessRedis
from tests.cluster.queue.backends import Backend, Scene, flush
from tests.cluster.queue.servers import Server
from tests.support.stores import IN_PROCESS, KINDS


@pytest.fixture(params=[IN_PROCESS, *KINDS])
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


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=[IN_PROCESS, *KINDS])
def server(
    request: pytest.FixtureRequest, redis_servers: dict[str, Server], clock: ManualClock
) -> Server | InProcessRedis:
    """An empty Redis of each kind."""
    if request.param == IN_PROCESS:
        return InProcessRedis(clock)
    found = redis_servers[request.param]
    flush(found)
    return found


@pytest.fixture
def target(server: Server | InProcessRedis) -> Any:
    """What stores connect to."""
    return server if isinstance(server, InProcessRedis) else server.url


async def open_backend(kind: str, servers: dict[str, Server]) -> AsyncIterator[Backend]:
    clock = ManualClock()
    if kind == IN_PROCESS:
        backend = Backend(clock, store=InProcessRedis(clock))
    else:
        server = servers[kind]
        flush(server)
        backend = Backend(clock, server=server)
    yield backend
    await backend.close()
