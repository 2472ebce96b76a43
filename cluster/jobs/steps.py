"""Detection of steps of the store's clock, by comparison with a clock that is never stepped."""

from __future__ import annotations


class ClockSteps:
    """One router's view of the store's clock. After a step of the clock a lease can look ended, or far from its end,
    until its live holder has renewed it.
    """

    def __init__(self, lease_ms: int) -> None:
        self._lease_s = lease_ms / 1000
        self._offset_s: float | None = None
        """Time of the store minus our own, when last seen."""
        self._doubt_until = float("-inf")

    def believes(self, store_ms: int, monotonic_s: float) -> bool:
        """Return whether a lease that ended by the store's time has really ended.

        Args:
            store_ms: the store's time, in milliseconds.
            monotonic_s: our own monotonic time at that moment, in seconds.
        """
        offset_s = store_ms / 1000 - monotonic_s
        # Feeders renew three times per lease, so a smaller step ends no lease that is renewed.
        if self._offset_s is not None and abs(offset_s - self._offset_s) > self._lease_s / 2:
            self._doubt_until = monotonic_s + self._lease_s
        self._offset_s = offset_s
        return monotonic_s >= self._doubt_until
