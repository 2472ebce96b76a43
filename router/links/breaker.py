"""Says when a replica fails so often that a router leaves it alone for a while. Pure: time comes from outside."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_S = 60.0
"""The longest pause, in seconds."""


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """Says when a breaker opens, and for how long."""

    failures: int = 5
    """Attempts that fail without a success between them; 0 never opens it."""
    open_s: float = 5.0
    """The first pause; doubled with each one that ends in a failure, up to LONGEST_S."""


class Breaker:
    """Is one router's judgement of one replica. Closed: work goes there. Open: none, for a pause. After it work goes
    there again, and the next attempt that succeeds closes it, or fails and opens it for longer.

    Failures are the cluster's own: an engine that errs or dies, or a replica that gives up. What a client asked
    wrongly, cancelled or timed out says nothing. Lost links are judged elsewhere.
    """

    def __init__(self, limits: BreakerLimits) -> None:
        self._limits = limits
        self._failed = 0
        """Since the last success."""
        self._pause_s = 0.0
        self._open_until = 0.0

    def failed(self, now: float) -> None:
        """Note an attempt that the replica failed."""
        self._failed += 1
        most = self._limits.failures
        # Others that began before it opened fail as well; only what was tried after the pause says anything new.
        if not most or self._failed < most or self.is_open(now):
            return
        self._pause_s = min(LONGEST_S, 2 * self._pause_s if self._pause_s else self._limits.open_s)
        self._open_until = now + self._pause_s

    def succeeded(self) -> None:
        """Note an attempt that had output."""
        self._failed = 0
        self._pause_s = self._open_until = 0.0

    def is_open(self, now: float) -> bool:
        """Say whether the replica is left alone."""
        return now < self._open_until
