"""What hosts of a replica share, with Ray and without: its settings, its parts, and the report of a failed start."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

from cluster.autoscaler.redis.store import RedisControlStore
from cluster.errors import QueueUnavailableError
from cluster.queue.cells.member import ReplicaCells
from cluster.queue.redis.queue import RedisQueue
from cluster.queue.settings import limits_from
from cluster.registry.redis.store import RedisRegistryStore
from cluster.rollout.book import RolloutBook
from cluster.rollout.redis.store import RedisRolloutStore
from cluster.settings import Settings, load_settings
from cluster.settings.load import parse_settings
from cluster.trust.announcement import replica_name
from cluster.trust.secret import ClusterSecret
from deployments.engines.factory import build_engine
from deployments.replica.life import RayHome, ReplicaPlan
from deployments.replica.replica import Replica
from deployments.revisions import Place, started_as, told_to_retire

_LOG = logging.getLogger(__name__)


def read_settings(settings_file: str, tree: dict[str, Any] | None = None) -> Settings:
    """Read the settings from a JSON file that the bootstrap wrote.

    Without a file, read TOML and environment, and let `tree` override both.
    """
    if settings_file:
        return parse_settings(Path(settings_file).read_text(encoding="utf-8"))
    return load_settings(flags=tree)


async def start_replica(
    settings: Settings,
    pool: str,
    unique_id: str,
    rank: int,
    home: RayHome = RayHome(),  # noqa: B008  # frozen
) -> Replica:
    """Start a replica with the pool's revision.

    Args:
        settings: the whole tree.
        pool: the pool's name.
        unique_id: id of this replica within its pool; a new one at every start.
        rank: number of this replica within its pool, from 0.
        home: the RayCluster that it runs in.

    Raises:
        SettingsError: the cluster secret can't be read, or this release does not know a setting of the revision.
        EngineStartError: the engine did not come up.
        QueueUnavailableError: Redis does not say which revision the pool has.
    """
    # Before the revision is asked for: what is wrong here is not the revision's fault.
    secret = _secret_of(settings)
    book = open_rollouts(settings, pool)
    place = Place(replica_name(pool, unique_id), rank)
    try:
        async with started_as(book, settings.pools[pool], place) as (revision, own):
            plan = ReplicaPlan(
                replica_id=place.replica_id,
                pool=pool,
                pool_settings=own,
                queue_settings=settings.queue,
                settings=settings.replica,
                telemetry=settings.telemetry,
                adapter_folder=settings.cluster.folder / "adapters",
                revision=revision.number,
                home=home,
                fixed=settings.registry,
            )
            replica = _make_replica(settings, secret, plan, rank)
            await replica.start()
            return replica
    finally:
        await book.close()


def _secret_of(settings: Settings) -> ClusterSecret:
    secret_file = settings.cluster.secret_file
    if secret_file is None:
        raise ValueError("cluster.secret_file must be set for replicas")
    return ClusterSecret.from_file(secret_file)


def _make_replica(settings: Settings, secret: ClusterSecret, plan: ReplicaPlan, rank: int) -> Replica:
    limits, pool, own = limits_from(settings.queue), plan.pool, plan.pool_settings

    def open_cell(name: str) -> RedisQueue:
        return RedisQueue(settings.redis.url, name, limits, settings.redis.timeout_s)

    cells = ReplicaCells(pool, open_cell, own.cells, settings.queue.lease_s)
    return Replica(
        plan,
        build_engine(own, cpu_cores=choose_cores(settings, pool, rank, own.tensor_parallel_size)),
        cells.open,
        secret,
        open_control=lambda: open_control(settings, pool),
        open_registry=lambda: RedisRegistryStore(settings.redis.url, settings.redis.timeout_s),
        layout=cells.layout,
    )


def open_rollouts(settings: Settings, pool: str) -> RolloutBook:
    """Open the record of the pool's roll-out."""
    return RolloutBook(pool, RedisRolloutStore(settings.redis.url, pool, settings.redis.timeout_s))


async def ordered_to_end(settings: Settings, replica: Replica) -> float:
    """Wait until the replica has to give way to another revision. Return the seconds that its requests may take.

    Its host stops it then, and ends the process; the platform starts another one.
    """
    book = open_rollouts(settings, replica.plan.pool)
    try:
        return await told_to_retire(book, replica.plan.replica_id, settings.queue.heartbeat_s)
    finally:
        await book.close()


def open_control(settings: Settings, pool: str) -> RedisControlStore:
    """Open the store that the pool's autoscaler and replicas share."""
    return RedisControlStore(settings.redis.url, pool, settings.redis.timeout_s)


async def note_failed_start(settings: Settings, pool: str, error: Exception) -> None:
    """Report a failed start to the autoscaler."""
    store = open_control(settings, pool)
    try:
        await store.note_failed_start(f"{type(error).__name__}: {error}"[:500])
    except QueueUnavailableError:
        _LOG.warning("replica.failure_not_told")
    finally:
        await store.close()


def choose_cores(settings: Settings, pool: str, rank: int, size: int) -> tuple[int, ...]:
    """Pick the CPU cores of a replica's ranks. vLLM would pick the same ones for every replica of a machine. `size`:
    number of ranks. While a roll-out changes it, some replicas may share cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    before = 0
    for name, other in settings.pools.items():
        if name == pool:
            break
        most = max(other.replicas, other.autoscale.max_replicas or 0)
        before += most * other.tensor_parallel_size
    first = before + rank * max(size, settings.pools[pool].tensor_parallel_size)
    return tuple(cores[(first + i) % len(cores)] for i in range(size))


async def end_after_engine_death(replica: Replica) -> None:
    """End this process. Before, routers get the ends of their attempts and the lease is given back."""
    try:
        async with asyncio.timeout(5.0):
            await replica.stop(drain_s=0.2)
    finally:
        os._exit(1)
