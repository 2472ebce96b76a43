"""The replicas of a pool, as its roll-out needs them."""

from __future__ import annotations

from collections.abc import Callable

from cluster.queue.heartbeats import DRAIN_CODES, PoolView, ReplicaRecord
from cluster.rollout.judge import Member
from cluster.trust.announcement import Announcement
from cluster.trust.secret import ClusterSecret
from penstock.models import DrainReason, ReplicaState


def tokenizer_of(secret: ClusterSecret, record: bytes) -> str:
    """Return the digest of the tokenizer that a replica announces; empty where that can't be read."""
    announcement = Announcement.open(record, secret)
    return announcement.model.tokenizer_digest if announcement is not None else ""


def members_of(view: PoolView, tokenizer: Callable[[bytes], str]) -> list[Member]:
    """Return the replicas with a live lease. `tokenizer` reads the digest of a replica's tokenizer from its record."""
    return [_member(record, tokenizer) for record in view.replicas]


def _member(record: ReplicaRecord, tokenizer: Callable[[bytes], str]) -> Member:
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
        tokenizer=tokenizer(record.record),
    )
