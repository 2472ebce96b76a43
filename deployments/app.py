"""The Ray Serve application of one pool. Serve owns placement, count, health and updates. No token passes it."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

from ray import serve

from cluster.autoscaler.redis.store import RedisControlStore
from cluster.errors import EngineDeadError, QueueUnavailableError
from cluster.gc_tuning import settle_heap
from cluster.queue.redis.queue import RedisQueue
from cluster.queue.settings import limits_from
from cluster.ray_serve.config import DEPLOYMENT
from cluster.ray_serve.start_report import VARIABLE, Failure, StartReport, report_base
from cluster.settings import Settings, load_settings
from cluster.settings.load import parse_settings
from cluster.telemetry import configure_logging
from cluster.trust.announcement import replica_name
from cluster.trust.secret import ClusterSecret
from deployments.engines.factory import build_engine
from deployments.replica.replica import Replica, ReplicaPlan

_LOG = logging.getLogger(__name__)


class ReplicaHost:
    """Serve deployment whose actors each host one `Replica`."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, pool: str, settings_file: str, tree: dict[str, Any] | None = None
    ) -> None:
        """Start the replica. Serve counts it as running only after this call and a first health check."""
        settings = read_settings(settings_file, tree)
        configure_logging(settings.cluster.log_level, settings.cluster.log_format)
        self._replica: Replica | None = None
        report = open_report(settings_file, pool)
        try:
            replica = make_replica(settings, pool)
            await replica.start()
        except Exception as error:
            report.fail(Failure(str(error) or type(error).__name__, getattr(error, "final", False)))
            # Serve retries by itself without end. The autoscaler should know that the starts fail.
            await note_failed_start(settings, pool, error)
            raise
        report.clear()
        self._replica = replica
        settle_heap()

    async def check_health(self) -> None:
        """Check the engine. If it is dead, end this process, so that Serve replaces it at its next check."""
        if self._replica is None:
            return
        try:
            await self._replica.check_health()
        except EngineDeadError as error:
            _LOG.error("replica.engine_dead", extra={"error": str(error)})
            await self._end_after_engine_death(self._replica)

    async def _end_after_engine_death(self, replica: Replica) -> None:
        # Before the process ends, routers get the ends of their attempts and the lease is given back.
        try:
            async with asyncio.timeout(5.0):
                await replica.stop(drain_s=0.2)
        finally:
            os._exit(1)

    async def record_replica_metadata(self) -> dict[str, Any]:
        """Return the address of the inner service, for Serve's own tools."""
        return {} if self._replica is None else {"address": self._replica.address}

    async def __call__(self) -> str:
        """Return the inner address. Penstock itself never calls this; it helps people who inspect a cluster."""
        return "" if self._replica is None else self._replica.address

    async def __del__(self) -> None:
        """Drain the replica. Serve awaits this once before it kills the actor, and gives no other notice."""
        replica = getattr(self, "_replica", None)
        if replica is not None:
            await replica.stop()


def read_settings(settings_file: str, tree: dict[str, Any] | None = None) -> Settings:
    """Read the settings from a JSON file that the bootstrap wrote.

    Without a file, read TOML and environment, and let `tree` override both.
    """
    if settings_file:
        return parse_settings(Path(settings_file).read_text(encoding="utf-8"))
    return load_settings(flags=tree)


def open_report(settings_file: str, pool: str) -> StartReport:
    """Open the report of this actor's start, also for the engine's processes."""
    if (base := report_base(settings_file, pool, _unique_id() if settings_file else "")) is None:
        return StartReport(None)
    os.environ[VARIABLE] = str(base)
    report = StartReport(base)
    report.clear()
    report.stage("starting the replica")
    return report


def _unique_id() -> str:
    return str(serve.get_replica_context().replica_id.unique_id)


def make_replica(settings: Settings, pool: str) -> Replica:
    """Make the replica of this actor. Call `start` on it next.

    Raises:
        SettingsError: the cluster secret can't be read.
    """
    context = serve.get_replica_context()
    plan = ReplicaPlan(
        replica_id=replica_name(pool, _unique_id()),
        pool=pool,
        pool_settings=settings.pools[pool],
        queue_settings=settings.queue,
        settings=settings.replica,
    )
    secret_file = settings.cluster.secret_file
    if secret_file is None:
        raise ValueError("cluster.secret_file must be set for replicas")
    limits = limits_from(settings.queue)
    return Replica(
        plan,
        build_engine(plan.pool_settings, cpu_cores=choose_cores(settings, pool, context.rank.rank)),
        lambda: RedisQueue(settings.redis.url, pool, limits, settings.redis.timeout_s),
        ClusterSecret.from_file(secret_file),
        open_control=lambda: open_control(settings, pool),
    )


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


def choose_cores(settings: Settings, pool: str, rank: int) -> tuple[int, ...]:
    """Pick the CPU cores of a replica's ranks. vLLM would pick the same ones for every replica of a machine."""
    cores = sorted(os.sched_getaffinity(0))
    before = 0
    for name, other in settings.pools.items():
        if name == pool:
            break
        most = max(other.replicas, other.autoscale.max_replicas or 0)
        before += most * other.tensor_parallel_size
    size = settings.pools[pool].tensor_parallel_size
    first = before + rank * size
    return tuple(cores[(first + i) % len(cores)] for i in range(size))


def build(args: dict[str, Any]) -> serve.Application:
    """Build the application that the declarative config names.

    Args:
        args: pool (name), settings_file (JSON; empty for TOML and environment) and settings (a part of the tree that
            overrides TOML and environment). A change of `settings` in the config, or of `digest` for the file, replaces
            the replicas one by one.
    """
    pool, settings_file = str(args["pool"]), str(args.get("settings_file", ""))
    deployment = serve.deployment(name=DEPLOYMENT)(ReplicaHost)
    return deployment.bind(pool, settings_file, args.get("settings"))
