"""The Ray Serve application of one pool. Serve owns placement, count, health and updates. No token passes it."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import ray
from ray import serve

from cluster.errors import EngineDeadError
from cluster.gc_tuning import settle_heap
from cluster.ray_serve.config import DEPLOYMENT
from cluster.ray_serve.session import session_start
from cluster.ray_serve.start_report import VARIABLE, Failure, StartReport, report_base
from cluster.settings import Settings
from cluster.telemetry import configure_logging
from deployments.hosting import end_after_engine_death, note_failed_start, ordered_to_end, read_settings, start_replica
from deployments.replica.life import RayHome
from deployments.replica.replica import Replica

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
            rank = serve.get_replica_context().rank.rank
            replica = await start_replica(settings, pool, _unique_id(), rank, ray_home())
        except Exception as error:
            report.fail(Failure(str(error) or type(error).__name__, getattr(error, "final", False)))
            # Serve retries by itself without end. The autoscaler should know that the starts fail.
            await note_failed_start(settings, pool, error)
            raise
        report.clear()
        self._replica = replica
        self._gives_way = False
        self._yielding = asyncio.create_task(self._give_way(settings, replica), name="give-way")
        settle_heap()

    async def _give_way(self, settings: Settings, replica: Replica) -> None:
        drain_s = await ordered_to_end(settings, replica)
        self._gives_way = True
        await replica.stop(drain_s, settings.queue.attach_grace_s)
        # Serve starts another one in place of an actor that has ended.
        os._exit(0)

    async def check_health(self) -> None:
        """Check the engine. If it is dead, end this process, so that Serve replaces it at its next check."""
        if self._replica is None:
            return
        try:
            await self._replica.check_health()
        except EngineDeadError as error:
            _LOG.error("replica.engine_dead", extra={"error": str(error)})
            await end_after_engine_death(self._replica)

    async def record_replica_metadata(self) -> dict[str, Any]:
        """Return the address of the inner service, for Serve's own tools."""
        return {} if self._replica is None else {"address": self._replica.address}

    async def __call__(self) -> str:
        """Return the inner address. Penstock itself never calls this; it helps people who inspect a cluster."""
        return "" if self._replica is None else self._replica.address

    async def __del__(self) -> None:
        """Drain the replica. Serve awaits this once before it kills the actor, and gives no other notice."""
        replica = getattr(self, "_replica", None)
        if replica is None:
            return
        if self._gives_way:
            await self._yielding
        self._yielding.cancel()
        await replica.stop()


def open_report(settings_file: str, pool: str) -> StartReport:
    """Open the report of this actor's start, also for the engine's processes."""
    if (base := report_base(settings_file, pool, _unique_id() if settings_file else "")) is None:
        return StartReport(None)
    os.environ[VARIABLE] = str(base)
    report = StartReport(base)
    report.clear()
    report.stage("starting the replica")
    return report


def ray_home() -> RayHome:
    """Return the RayCluster of this actor. KubeRay puts its name into every pod; without a name there is none."""
    name = os.environ.get("RAY_CLUSTER_NAME", "")
    return RayHome(name, session_start(ray.get_runtime_context().get_session_name())) if name else RayHome()


def _unique_id() -> str:
    return str(serve.get_replica_context().replica_id.unique_id)


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
