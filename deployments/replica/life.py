"""What a replica is, and what it tells of itself: its announcement, and the values of a heartbeat for operators."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cluster.models import EngineStats
from cluster.queue.heartbeats import DRAIN_CODES
from cluster.registry.pools import NOTHING_FIXED
from cluster.settings import PoolSettings, QueueSettings, ReplicaSettings, TelemetrySettings
from cluster.settings.registry import RegistrySettings
from cluster.trust.announcement import Announcement
from deployments.engines.base import EngineIdentity
from deployments.replica.output_log import OutputLog
from penstock.models import DrainReason, FinishReason
from penstock.values.slo import OperatingPoint

_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class RayHome:
    """RayCluster that a replica runs in."""

    cluster: str = ""
    """Name; empty where KubeRay made none."""
    started_at: float = 0.0
    """Start of its Ray session, seconds since the epoch by the head's clock."""


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """Identity and settings of a replica."""

    replica_id: str
    pool: str
    pool_settings: PoolSettings
    queue_settings: QueueSettings
    settings: ReplicaSettings
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    adapter_folder: Path | None = None
    """Folder for copies of adapters; None takes the one for temporary files."""
    revision: int = 0
    """Number of the revision of the pool that `pool_settings` are of."""
    home: RayHome = RayHome()
    fixed: RegistrySettings = NOTHING_FIXED
    """Pools that only the settings may change."""


@dataclass(slots=True)
class Life:
    """Turning points of a replica. Times are seconds of the monotonic clock."""

    born_at: float
    ready_at: float | None = None
    """Time from which it takes work; None while it starts."""
    drains_at: float | None = None
    """Time at which it began to drain."""
    drain_reason: DrainReason | None = None

    def drain(self, reason: DrainReason, now: float) -> None:
        """Note that it drains. The first reason stays: a replica whose engine died is stopped afterwards."""
        if self.drain_reason is None:
            self.drains_at, self.drain_reason = now, reason

    def report(self, now: float) -> dict[str, float]:
        """Return the values for the heartbeat."""
        ready_at = self.ready_at if self.ready_at is not None else now
        found = {"up_s": now - ready_at, "start_s": ready_at - self.born_at}
        if self.drain_reason is not None and self.drains_at is not None:
            found |= {"drain_reason": DRAIN_CODES[self.drain_reason], "draining_s": now - self.drains_at}
        return found


@dataclass(slots=True)
class Served:
    """Requests that have ended on a replica. By them a roll-out judges a new revision."""

    revision: int
    """Number of the replica's revision."""
    ended: int = 0
    failed: int = 0
    late: int = 0
    """Those that missed a latency target of the pool, from their start here on."""

    def count(self, log: OutputLog, point: OperatingPoint) -> None:
        """Count a request that has ended, with the pool's targets now."""
        end = log.end
        if end is None or log.moved or end.invalid_request or end.reason is FinishReason.CANCELLED:
            return
        self.ended += 1
        self.failed += end.reason is FinishReason.ERROR
        slos = point.interactive, point.standard, point.batch
        first_s = min((slo.ttft_p99_s for slo in slos if slo.ttft_p99_s is not None), default=None)
        itl_s = end.decode_s / (end.output_tokens - 1) if end.output_tokens > 1 else 0.0
        self.late += (first_s is not None and end.prefill_s > first_s) or (
            point.itl_p95_s is not None and itl_s > point.itl_p95_s
        )

    def report(self) -> dict[str, float]:
        """Return the values for the heartbeat."""
        return {"revision": self.revision, "ended": self.ended, "failed": self.failed, "late": self.late}


def engine_report(stats: EngineStats) -> dict[str, float]:
    """Return the engine's values for the heartbeat."""
    return {
        "running": stats.running,
        "waiting": stats.waiting,
        "batch_limit": stats.batch_limit,
        "kv_usage": stats.kv_usage,
        "output_tokens": stats.output_tokens,
        "accepted_draft_tokens": stats.accepted_draft_tokens,
    }


def announcement(plan: ReplicaPlan, identity: EngineIdentity, address: str, metrics_port: int) -> Announcement:
    """Return what routers learn of a replica once."""
    settings = plan.pool_settings
    return Announcement(
        replica_id=plan.replica_id,
        pool=plan.pool,
        address=address,
        group_id=identity.group_id,
        model=identity.model,
        tensor_parallel_size=identity.tensor_parallel_size,
        hardware=identity.hardware,
        metrics_port=metrics_port,
        price_per_gpu_hour=settings.price_per_gpu_hour,
        model_name=settings.model,
        gpus=settings.ranks,
        ray_cluster=plan.home.cluster,
        ray_started_at=plan.home.started_at,
    )


class Keeps(Protocol):
    """Something that keeps output until it is fetched."""

    @property
    def retained(self) -> int:
        """Number of finished attempts that are kept."""
        ...


async def fetched(table: Keeps | None, seconds: float) -> None:
    """Wait until all output was fetched, or for so many seconds. The client of a dead router comes back for it."""
    until = time.monotonic() + seconds
    while True:
        if table is None or not table.retained or time.monotonic() >= until:
            return
        await asyncio.sleep(_LOOK_S)
