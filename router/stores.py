"""The stores of a router outside its process, and how it connects to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cluster.announced.contract import AnnouncedStore
from cluster.announced.redis.store import RedisAnnouncedStore
from cluster.autoscaler.redis.store import RedisControlStore
from cluster.autoscaler.store import ControlStore
from cluster.jobs.contract import JobStore
from cluster.jobs.pools import JobPools, RedisJobPools
from cluster.jobs.redis.store import RedisJobStore
from cluster.jobs.settings import job_limits_from
from cluster.queue.cells.cell import Cell
from cluster.queue.cells.queue import CellQueue
from cluster.queue.contract import Bell, Queue
from cluster.queue.redis.bell import RedisBell
from cluster.queue.redis.queue import RedisQueue
from cluster.queue.settings import limits_from
from cluster.records.contract import RecordStore
from cluster.records.redis.store import RedisRecordStore
from cluster.records.settings import record_limits_from
from cluster.registry.contract import RegistryStore
from cluster.registry.redis.store import RedisRegistryStore
from cluster.responses.contract import ResponseStore
from cluster.responses.redis.store import RedisResponseStore
from cluster.responses.settings import response_limits_from
from cluster.rollout.contract import RolloutStore
from cluster.rollout.redis.store import RedisRolloutStore
from cluster.settings import Settings


@dataclass(frozen=True, slots=True)
class QueueFactory:
    """Functions that open stores. Each connection belongs to the loop that uses it first."""

    queue: Callable[[str], Cell]
    """Cell of a pool, by the cell's name; that of the first one is the pool's."""
    bell: Callable[[str], Bell]
    """Bell of a router, by the router's id."""
    jobs: Callable[[str], JobStore]
    """Jobs of a pool, by the pool's name."""
    job_pools: Callable[[], JobPools]
    control: Callable[[str], ControlStore]
    """Autoscaler records of a pool, by the pool's name."""
    responses: Callable[[], ResponseStore]
    records: Callable[[str], RecordStore]
    """Records of a pool's requests, by the pool's name."""
    registry: Callable[[], RegistryStore]
    rollout: Callable[[str], RolloutStore]
    """Roll-out of a pool, by the pool's name."""
    announced: Callable[[str], AnnouncedStore]
    """Announced load of a pool, by the pool's name."""

    def pool(self, name: str) -> Queue:
        """Open all cells of a pool, to look at it."""
        return CellQueue(name, self.queue)


def redis_factory(settings: Settings, url: str = "") -> QueueFactory:
    """Return the functions that open the stores in Redis.

    Args:
        settings: limits and timeouts.
        url: Redis to use instead of that of the settings.
    """
    url, timeout_s = url or settings.redis.url, settings.redis.timeout_s
    limits, job_limits = limits_from(settings.queue), job_limits_from(settings.jobs)
    response_limits, record_limits = response_limits_from(settings), record_limits_from(settings)
    return QueueFactory(
        queue=lambda pool: RedisQueue(url, pool, limits, timeout_s),
        bell=lambda router_id: RedisBell(url, router_id),
        jobs=lambda pool: RedisJobStore(url, pool, job_limits, timeout_s),
        job_pools=lambda: RedisJobPools(url, timeout_s),
        control=lambda pool: RedisControlStore(url, pool, timeout_s),
        responses=lambda: RedisResponseStore(url, response_limits, timeout_s),
        records=lambda pool: RedisRecordStore(url, pool, record_limits, timeout_s),
        registry=lambda: RedisRegistryStore(url, timeout_s),
        rollout=lambda pool: RedisRolloutStore(url, pool, timeout_s),
        announced=lambda pool: RedisAnnouncedStore(url, pool, timeout_s),
    )
