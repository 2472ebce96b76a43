"""Shared safeguards of a pool's links: against silent replicas, abandoned attempts and orphaned output."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.links.abandoned import AbandonedAttempts
from router.links.failure import NO_LIMITS, RecoveryLimits
from router.links.orphaned_output import OrphanedOutput


@dataclass(frozen=True, slots=True)
class LinkSafeguards:
    """Safeguards of one pool; every link to its replicas has the same ones."""

    orphaned_output: OrphanedOutput
    """Output without a receiver, and when its attempt is stopped."""
    abandoned: AbandonedAttempts = field(default_factory=AbandonedAttempts)
    """Attempts to stop when their replica is reached again."""
    limits: RecoveryLimits = NO_LIMITS
    """Bounds on a replica's silence."""
