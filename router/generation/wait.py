"""The wait of a choice for its first place: since when, how long at most, and what is known of it."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from cluster.queue.entries import QueueEntry


class Wait:
    """Wait of one choice. Moments are of the monotonic clock."""

    __slots__ = (
        "_entry",
        "adopted",
        "arrived_at",
        "first_arrived_at",
        "first_position",
        "first_span",
        "position",
        "predicted_s",
        "submitted_at",
        "waited_s",
        "watched",
    )

    def __init__(self, entry: QueueEntry, arrived_at: float | None) -> None:
        """`arrived_at`: when the call came, now by default."""
        self._entry = entry
        self.submitted_at = time.monotonic()
        self.arrived_at = self.submitted_at if arrived_at is None else arrived_at
        """When its call came."""
        self.first_arrived_at = self.arrived_at
        """When the first call for it came, as far as the queue knows."""
        self.first_span = ""
        """Span of its first call, where this one resumes it."""
        self.position = 0
        """Waiting entries ahead, as last heard."""
        self.first_position = 0
        """Waiting entries ahead when it was put in line."""
        self.watched = False
        """Whether its client is told its position."""
        self.adopted = False
        """Whether another call made its entry, with the bound on its wait."""
        self.predicted_s: float | None = None
        """The first estimate of the whole wait; None when it did not have to wait, or nothing was known."""
        self.waited_s: float | None = None
        """How long it waited for its first place; None before that."""

    @property
    def has_time(self) -> bool:
        """Whether the bound on the wait is not reached, whatever the pool's clock says, which may be stepped."""
        bound_ms = 0 if self.adopted or self.waited_s is not None else self._entry.start_within_ms
        return (time.monotonic() - self.submitted_at) * 1000 < bound_ms

    @property
    def late(self) -> bool:
        """Whether it has waited long enough to let others pass."""
        after_ms = self._entry.late_after_ms
        return self.waited_s is None and 0 < after_ms <= (time.monotonic() - self.submitted_at) * 1000

    def entry_now(self) -> QueueEntry:
        """Describe the choice to a store that knows neither it nor its request's other choices."""
        entry = replace(self._entry, choices=1)
        if self.waited_s is not None:
            # It goes on: charged already, and its wait is not bounded any more.
            entry = replace(entry, resume=True, start_within_ms=0, late_after_ms=0, client_key="")
            # A store that forgot it counts its attempts from one again, and no two may have one name.
            return replace(entry, attempt_base=secrets.token_hex(6))
        passed_ms = int((time.monotonic() - self.submitted_at) * 1000)
        bounds = (entry.start_within_ms, entry.late_after_ms)
        start_ms, late_ms = (max(1, bound - passed_ms) if bound else 0 for bound in bounds)
        return replace(entry, start_within_ms=start_ms, late_after_ms=late_ms)
