"""Notices that the store's clock was stepped, by holding it against a clock that never is."""

from __future__ import annotations


class ClockSteps:
    """Is one feeder's view. After a step leases look ended, or far from it, until whoever is alive has renewed."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_s = lease_ms / 1000
        self._offset_s: float | None = None
        """The store's time less our own, when last seen."""
        self._doubt_until = float("-inf")

    def believes(self, store_ms: int, monotonic_s: float) -> bool:
        """Whether a lease that ended by the store's time has ended. Takes the store's time in milliseconds, and our own
        when it was told.
        """
        offset_s = store_ms / 1000 - monotonic_s
        # Feeders renew three times per lease, so a smaller step ends no lease that is renewed.
        if self._offset_s is not None and abs(offset_s - self._offset_s) > self._lease_s / 2:
            self._doubt_until = monotonic_s + self._lease_s
        self._offset_s = offset_s
        return monotonic_s >= self._doubt_until
