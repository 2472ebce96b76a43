"""Record of replica starts: which were ordered, how long they took, and which failed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

SAMPLES = 20
"""Number of cold starts that are remembered."""
_PART = 0.9
_FAILED_AGAIN_S = 3600.0
"""Longest time between two failures in a row, and time after which the last failure is forgotten."""


@dataclass(frozen=True, slots=True)
class Starts:
    """Known starts of a pool. Times are pool time in seconds. `update` returns the next value."""

    asked: tuple[float, ...] = ()
    """When each replica was ordered that is not ready yet, oldest first."""
    known: frozenset[str] = frozenset()
    """Replicas that were seen ready."""
    samples: tuple[float, ...] = ()
    """Cold starts, seconds, oldest first."""
    failed: int = 0
    """Ticks in a row that found failures."""
    last_failure_at: float | None = None
    reported: int | None = None
    """Failures that replicas had reported at the last tick; None before the first."""
    unseen: int = 0
    """Number of starts at the beginning of `asked` that were ordered at an unknown time before the first tick."""
    least_s: float = 0.0
    """Longest time that one of those took since the first tick, seconds; a cold start takes at least as long."""

    def cold_start_s(self, default_s: float) -> float:
        """Return the 90th percentile of the measured cold starts, in seconds. Without any, return `default_s`, or
        `least_s` if that is longer.
        """
        if not self.samples:
            return max(default_s, self.least_s)
        ordered = sorted(self.samples)
        return ordered[math.ceil(_PART * len(ordered)) - 1]

    def update(
        self,
        at: float,
        ready: Mapping[str, float],
        target: int,
        reported: int,
        timeout_s: float,
        *,
        drain_s: float = 0.0,
    ) -> Starts:
        """Return the record after one more tick.

        Args:
            at: now.
            ready: seconds for which each ready replica has been ready.
            target: number of replicas that are wanted.
            reported: failed starts that replicas ever reported.
            timeout_s: a start that takes longer has failed.
            drain_s: seconds that another replica may drain before its successor starts. Such starts are no samples.
        """
        # A longer sample is not from a start that was waited for. Once stored it would count for twenty starts.
        kept = tuple(sample for sample in self.samples if sample <= timeout_s)
        found = replace(self, samples=kept)._arrived(at, ready)
        if drain_s:
            found = replace(found, samples=kept, least_s=self.least_s)
        found = found.asked_for(at, max(0, target - len(ready)))
        if self.reported is None:
            found = replace(found, unseen=len(found.asked))
        late = [asked for asked in found.asked if at - asked > timeout_s + drain_s]
        # A store that lost everything counts from 0 again.
        told = max(0, reported - self.reported) if self.reported is not None else 0
        failures = len(late) + told
        found = replace(found, reported=reported)
        if not failures:
            # If no start is ordered any more none can succeed, and without this the alarm would stay for ever.
            over = found.last_failure_at is not None and at - found.last_failure_at >= _FAILED_AGAIN_S
            return replace(found, failed=0, last_failure_at=None) if over else found
        in_a_row = found.failed if at - (found.last_failure_at or at) < _FAILED_AGAIN_S else 0
        # Starts that fail in the same tick count as one failure.
        left = found.asked[min(failures, len(found.asked)) :]
        unseen = max(0, found.unseen - failures)
        return replace(found, asked=left, unseen=unseen, failed=in_a_row + 1, last_failure_at=at)

    def _arrived(self, at: float, ready: Mapping[str, float]) -> Starts:
        asked, samples, failed = list(self.asked), list(self.samples), self.failed
        unseen, least_s = self.unseen, self.least_s
        for name in sorted(ready, key=lambda one: -ready[one]):
            # A replica that was ready before the oldest order was silent for a while and is back.
            if name not in self.known and asked and at - ready[name] > asked[0]:
                took_s = at - ready[name] - asked.pop(0)
                if unseen:
                    unseen, least_s = unseen - 1, max(least_s, took_s)
                else:
                    samples.append(took_s)
                failed = 0
        return replace(
            self,
            asked=tuple(asked),
            known=frozenset(ready),
            samples=tuple(samples[-SAMPLES:]),
            failed=failed,
            unseen=unseen,
            least_s=least_s,
        )

    def asked_for(self, at: float, missing: int) -> Starts:
        """Return the record with `missing` replicas to come. If that is fewer than before, the newest orders go."""
        asked = self.asked[:missing]
        added = (at for _ in range(missing - len(asked)))
        return replace(self, asked=(*asked, *added), unseen=min(self.unseen, len(asked)))
