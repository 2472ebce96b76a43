"""The wait of a choice for its first place: since when, how long at most, and what is known of it."""

from __future__ import annotations

import enum
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster.errors import DeadlineError, NotInTimeError, PenstockError, QueueTimeoutError
from cluster.queue.entries import BudgetUse, QueueEntry
from penstock.models import RequestClass

Group = tuple[RequestClass, str]
"""A class and a tenant."""


class WaitReason(enum.Enum):
    """Reason why a choice has no place yet, by its name in the API."""

    NO_REPLICA = "no_replica"
    NO_ROOM = "no_room"
    CLASS = "class"
    TENANTS = "tenants"
    OWN_TENANT = "own_tenant"
    QUOTA = "quota"
    AFFINITY = "affinity"
    QUEUE_UNAVAILABLE = "queue_unavailable"
    SUSPECTED = "suspected"


@dataclass(frozen=True, slots=True)
class EarlierRefusals:
    """Refusals of a call before it was let in."""

    first_at: float
    """Monotonic seconds, like the next one."""
    last_at: float
    times: int
    reason: str
    """Reason of the first one. Its error is not kept: an error keeps everything alive that it went through."""
    error: str
    """Its sentence."""
    quota: str = ""
    """Quota that it named."""
    limit: int = 0


class Wait:
    """Wait of one choice. Moments are of the monotonic clock."""

    __slots__ = (
        "_entry",
        "_noted_at",
        "adopted",
        "ahead",
        "arrived_at",
        "budget",
        "first_arrived_at",
        "first_position",
        "first_span",
        "holders",
        "known_tokens",
        "looks",
        "parts",
        "position",
        "predicted_s",
        "run_s",
        "submitted_at",
        "told",
        "waited_s",
        "watched",
        "windows",
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
        self.told = False
        """Whether its client knows that it waits, and its position as last heard."""
        self.adopted = False
        """Whether another call made its entry, with the bound on its wait."""
        self.run_s: float | None = None
        """Estimated run time in seconds, where the deadline less this bounds the wait; None where `queue_timeout` does.
        """
        self.predicted_s: float | None = None
        """The first estimate of the whole wait; None when it did not have to wait, or nothing was known."""
        self.waited_s: float | None = None
        """How long it waited for its first place; None before that."""

        self.parts: dict[WaitReason, float] = {}
        """Seconds that it is known to have waited, by reason; the last one comes last."""
        self.ahead: Sequence[tuple[RequestClass, str, int]] | None = None
        """Class, tenant and number of the entries ahead when they were first counted; None before that."""
        self.holders: dict[Group, float] = {}
        """Sum of the parts of the slots that tenants held, over `looks`."""
        self.looks = 0
        self.windows: dict[str, float] = {}
        """Seconds of the wait for which each window was full."""
        self.known_tokens = 0
        """Tokens of the prompt's beginning that ran on a replica before."""
        self.budget: BudgetUse | None = None
        """Budget of its tenant that is nearly used; its client is told."""
        self._noted_at = 0.0

    def note(self, reason: WaitReason, since: float, now: float, window: str = "") -> None:
        """Count the time from `since`, or from the last note after it, as waiting for this reason. `window` is the one
        that was full.
        """
        passed_s = now - max(since, self._noted_at)
        if passed_s <= 0:
            return
        self.parts[reason] = self.parts.pop(reason, 0.0) + passed_s
        self._noted_at = now
        if window:
            self.windows[window] = self.windows.get(window, 0.0) + passed_s

    def correct(self, known: WaitReason, better: WaitReason, seconds: float) -> None:
        """Move at most this much time from a reason to the one that turned out to be right."""
        moved_s = min(seconds, self.parts.get(known, 0.0))
        if moved_s > 0:
            self.parts[known] -= moved_s
            self.parts[better] = self.parts.pop(better, 0.0) + moved_s

    def note_holders(self, shares: Sequence[tuple[Group, float]]) -> None:
        """Note which parts of the slots tenants hold now."""
        if not shares:
            return
        self.looks += 1
        for group, share in shares:
            self.holders[group] = self.holders.get(group, 0.0) + share

    @property
    def has_time(self) -> bool:
        """Whether the bound on the wait is not reached, whatever the pool's clock says, which may be stepped."""
        bound_ms = 0 if self.adopted or self.waited_s is not None else self._entry.start_within_ms
        return (time.monotonic() - self.submitted_at) * 1000 < bound_ms

    def overdue(self) -> PenstockError:
        """Return the error of a wait that has reached its bound: it names what the client set."""
        waited_s = time.monotonic() - self.submitted_at
        bound_s = None if self.adopted else self._entry.start_within_ms / 1000 or None
        if bound_s is None or self.run_s is None:
            return QueueTimeoutError(waited_s, bound_s)
        left_s = bound_s + self.run_s - waited_s
        return NotInTimeError("deadline", self.run_s, left_s, None) if left_s > 0 else DeadlineError()

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
