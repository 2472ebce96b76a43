"""The ways to lose an attempt, and the bounds on silence that decide it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from cluster.settings import QueueSettings, RouterSettings


class Failure(enum.StrEnum):
    """Way in which an attempt was lost."""

    LINK = "link"
    """The replica is out of reach, and its lease or the grace is over."""
    ENGINE = "engine"
    """The replica says that the attempt failed."""
    ENGINE_DIED = "engine_died"
    """The replica says that its whole engine failed."""
    STALLED = "stalled"
    """The replica is alive but produces nothing."""


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """Bounds on how long attempts may be silent and how many of them a choice may lose; 0 s is no bound."""

    max_attempts: int = 3
    """Attempts that a choice may lose to failures; the last loss ends it."""
    first_token_s: float = 120.0
    """Longest silence of a replica that owes a first token."""
    token_s: float = 60.0
    """Longest silence of a replica whose attempts have all begun."""
    kept_s: float = 5.0
    """Time for which replicas keep output that nobody takes."""

    @classmethod
    def of(cls, router: RouterSettings, queue: QueueSettings) -> RecoveryLimits:
        """Return the limits that the settings name."""
        silence_s = router.first_token_timeout_s, router.token_timeout_s
        return cls(router.max_attempts, *silence_s, queue.attach_grace_s)


NO_LIMITS = RecoveryLimits()
