"""The queue's limits, from the settings."""

from __future__ import annotations

from cluster.queue.entries import QueueLimits
from cluster.settings import QueueSettings


def limits_from(settings: QueueSettings) -> QueueLimits:
    """Return the limits that all routers and replicas of a cluster share."""
    return QueueLimits(
        lease_ms=round(settings.lease_s * 1000),
        attach_grace_ms=round(settings.attach_grace_s * 1000),
        max_waiting=settings.max_waiting,
        lookahead=settings.lookahead,
        class_shares=(settings.class_shares.interactive, settings.class_shares.standard, settings.class_shares.batch),
        preempt_after_ms=round(settings.preempt_after_s * 1000),
        preempt_quantum_ms=round(settings.preempt_quantum_s * 1000),
        max_preemptions=settings.max_preemptions,
        result_ms=round(settings.result_s * 1000),
        max_result_bytes=settings.max_result_mb << 20,
        ledger_days=settings.ledger_days,
    )
