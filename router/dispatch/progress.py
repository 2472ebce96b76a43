"""Says when a replica that is alive produces nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from router.dispatch.recovery import RecoveryLimits


@dataclass(frozen=True, slots=True)
class Watched:
    """Is an attempt that has not ended."""

    since: float
    """When it was sent; monotonic seconds."""
    begun: bool
    """Whether it had output."""


def stalled(attempts: Iterable[Watched], quiet_since: float, now: float, limits: RecoveryLimits) -> bool:
    """Say whether a replica hangs.

    One silent sequence is no sign: an engine that runs out of KV cache lets some wait for others. So what counts is
    that nothing at all came from the replica for as long as one of its attempts may take for its next token.

    Args:
        attempts: what runs there for this router.
        quiet_since: when this router had any output from there last, or began to listen.
        now: the same clock as the other moments.
        limits: 0 s is no bound.
    """
    for attempt in attempts:
        bound = limits.token_s if attempt.begun else limits.first_token_s
        if bound and now - max(attempt.since, quiet_since) > bound:
            return True
    return False
