"""Says when a replica that is alive produces nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from router.links.failure import RecoveryLimits


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
    that nothing at all came from the replica. While a first token is owed its bound holds for all: one long prefill may
    fill a step that everybody waits for.

    Args:
        attempts: what runs there for this router.
        quiet_since: when this router had any output from there last, or began to listen.
        now: the same clock as the other moments.
        limits: 0 s is no bound.
    """
    live = tuple(attempts)
    if not live:
        return False
    bound = limits.token_s if all(attempt.begun for attempt in live) else limits.first_token_s
    waited = now - max(quiet_since, min(attempt.since for attempt in live))
    return bound > 0 and waited > bound
