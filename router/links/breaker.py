"""Circuit breaker: a replica that fails too often gets no work for a while. Pure: time comes from outside."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.settings import RouterSettings

LONGEST_S = 60.0
"""The longest pause, in seconds."""


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """Number of failures that opens a breaker, and how long it stays open."""

    failures: int = 5
    """Failed attempts without a success between them; 0 never opens the breaker."""
    open_s: float = 5.0
    """First pause, seconds. A pause that ends in another failure doubles the next one, up to LONGEST_S."""

    @classmethod
    def of(cls, router: RouterSettings) -> BreakerLimits:
        """Return the limits that the settings name."""
        return cls(router.breaker_failures, router.breaker_open_s)


class Breaker:
    """One router's judgement of one replica. Closed: the replica gets work. Open: it gets none, for a pause. After the
    pause it gets work again. The next attempt then closes the breaker with a success, or opens it for longer with a
    failure.

    Only failures of the cluster count: an engine that fails or dies, or a replica that gives up. A wrong, cancelled or
    timed-out request says nothing about the replica. Lost links are judged elsewhere.
    """

    def __init__(self, limits: BreakerLimits) -> None:
        self._limits = limits
        self._failed = 0
        """Failures since the last success."""
        self._pause_s = 0.0
        self._open_until = 0.0

    def failed(self, now: float) -> None:
        """Note an attempt that the replica failed."""
        self._failed += 1
        most = self._limits.failures
        # Attempts from before it opened fail as well. Only an attempt that began after the pause says anything new.
        if not most or self._failed < most or self.is_open(now):
            return
        self._pause_s = min(LONGEST_S, 2 * self._pause_s if self._pause_s else self._limits.open_s)
        self._open_until = now + self._pause_s

    def succeeded(self) -> None:
        """Note an attempt that produced output, and close."""
        self._failed = 0
        self._pause_s = self._open_until = 0.0

    @property
    def tripped(self) -> bool:
        """Whether it has opened, and no attempt has succeeded since: it is open, or its pause is over and nobody knows
        yet whether the replica works.
        """
        return self._pause_s > 0.0

    def is_open(self, now: float) -> bool:
        """Return whether the replica gets no work at this time."""
        return now < self._open_until
