"""Stall detection: a replica that is alive but produces nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from router.links.failure import RecoveryLimits


@dataclass(frozen=True, slots=True)
class WatchedAttempt:
    """Attempt that has not ended."""

    since: float
    """When it was sent; monotonic seconds."""
    begun: bool
    """Whether it had output."""


def stalled(attempts: Iterable[WatchedAttempt], quiet_since: float, now: float, limits: RecoveryLimits) -> bool:
    """Return whether a replica hangs.

    One silent sequence is no sign: an engine that runs out of KV cache lets some sequences wait for others. So the
    whole replica must be silent. While any attempt has no first token, the bound for first tokens holds for all: one
    long prefill may fill a step that every sequence waits for.

    Args:
        attempts: those of this router that run on the replica.
        quiet_since: when this router got the last output from the replica, or began to listen.
        now: on the same clock as the other times.
        limits: 0 s is no bound.
    """
    live = tuple(attempts)
    if not live:
        return False
    bound = limits.token_s if all(attempt.begun for attempt in live) else limits.first_token_s
    waited = now - max(quiet_since, min(attempt.since for attempt in live))
    return bound > 0 and waited > bound
