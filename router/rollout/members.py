"""The replicas of a pool, as its roll-out needs them."""

from __future__ import annotations

from cluster.queue.heartbeats import DRAIN_CODES, PoolView, ReplicaRecord
from cluster.rollout.judge import Member
from penstock.models import DrainReason, ReplicaState


def members_of(view: PoolView) -> list[Member]:
    """Return the replicas with a live lease."""
    return [_member(record) for record in view.replicas]


def _member(record: ReplicaRecord) -> Member:
    stats = record.stats
    stopped = stats.get("drain_reason") == DRAIN_CODES[DrainReason.STOPPED]
    return Member(
        record.replica_id,
        # A replica of the last release runs the pool's own settings.
        revision=int(stats.get("revision", 0)),
        ready=record.state is ReplicaState.READY,
        leaving=record.state is ReplicaState.DRAINING and stopped,
        up_s=stats.get("up_s", 0.0),
        running=record.sequences,
        ended=int(stats.get("ended", 0)),
        failed=int(stats.get("failed", 0)),
        late=int(stats.get("late", 0)),
    )
