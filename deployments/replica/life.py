"""What a replica tells of itself: its announcement, and the values of a heartbeat for operators."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.models import EngineStats
from cluster.queue.heartbeats import DRAIN_CODES
from cluster.settings import PoolSettings
from cluster.trust.announcement import Announcement
from deployments.engines.base import EngineIdentity
from penstock.models import DrainReason


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


def announcement(
    replica_id: str, pool: str, settings: PoolSettings, identity: EngineIdentity, address: str, metrics_port: int
) -> Announcement:
    """Return what routers learn of a replica once."""
    return Announcement(
        replica_id=replica_id,
        pool=pool,
        address=address,
        group_id=identity.group_id,
        model=identity.model,
        tensor_parallel_size=identity.tensor_parallel_size,
        hardware=identity.hardware,
        metrics_port=metrics_port,
        price_per_gpu_hour=settings.price_per_gpu_hour,
        model_name=settings.model,
        gpus=settings.ranks,
    )
