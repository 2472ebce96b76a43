"""The list of pools that ever had jobs."""

from __future__ import annotations

import pytest

from cluster.errors import QueueUnavailableError
from cluster.jobs.pools import JobPools, RedisJobPools
from tests.cluster.jobs.conftest import Backend

pytestmark = pytest.mark.every_store("keys of no pool, which have a slot of their own")


def opened(backend: Backend) -> JobPools:
    register = RedisJobPools(backend.target, 10.0)
    backend.opened.append(register)
    return register


async def test_pools_are_remembered_for_everybody(backend: Backend) -> None:
    here, there = opened(backend), opened(backend)

    await here.add([])
    assert frozenset() == await here.names()
    await here.add({"chat": 1}.keys())
    await there.add(["chat", "Large_70B.v2"])
    assert {"chat", "Large_70B.v2"} == await here.names() == await there.names()


async def test_without_redis_it_says_so() -> None:
    register = RedisJobPools("redis://127.0.0.1:1", 0.5)
    with pytest.raises(QueueUnavailableError):
        await register.names()
    await register.close()
    await register.close()
