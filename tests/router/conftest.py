"""Every kind of store under a running cluster."""

from __future__ import annotations

import pytest

from router.registry.api import MOST_WAIT_S
from tests.cluster.queue.backends import flush
from tests.cluster.queue.servers import Server


@pytest.fixture
def patient_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change waits for all routers, also on a machine that stands still for a while."""
    monkeypatch.setattr("router.registry.api.DEFAULT_WAIT_S", MOST_WAIT_S)


@pytest.fixture(params=["in-process", "redis-7.0", "redis-cluster"])
def store_url(request: pytest.FixtureRequest, redis_servers: dict[str, Server]) -> str:
    """The address of an empty store; "" is Redis in process."""
    if request.param == "in-process":
        return ""
    server = redis_servers[request.param]
    flush(server)
    return server.url
