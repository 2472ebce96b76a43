"""Follows starts: what was asked for, how long it took, and what never came."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

SAMPLES = 20
"""Cold starts that are remembered."""
_PART = 0.9
_FAILED_AGAIN_S = 3600.0
"""Failures are in a row while less than this lies between them, and the last one is forgotten after so long."""


@dataclass(frozen=True, slots=True)
class Starts:
    """Is what is known of starts. Times are pool time in seconds. `update` returns the next one."""

    asked: tuple[float, ...] = ()
    """When each replica was asked for that has not come yet, oldest first."""
    known: frozenset[str] = frozenset()
    """Replicas that were seen ready."""
    samples: tuple[float, ...] = ()
    """Cold starts, seconds, oldest first."""
    failed: int = 0
    """Looks in a row that found failures."""
    last_failure_at: float | None = None
    reported: int | None = None
    """Failures that replicas had reported at the last look; None before the first."""
    unseen: int = 0
    """Of `asked`, how many at its beginning somebody had asked for before the first look, nobody knows when."""
    least_s: float = 0.0
    """The longest that one of those took from the first look on, seconds; a cold start takes no less."""

    def cold_start_s(self, default_s: float) -> float:
        """Return the 90th percentile of what was measured."""
        if not self.samples:
            return max(default_s, self.least_s)
        ordered = sorted(self.samples)
        return ordered[math.ceil(_PART * len(ordered)) - 1]

    def update(self, at: float, ready: Mapping[str, float], target: int, reported: int, timeout_s: float) -> Starts:
        """Take what is there now.

        Args:
            at: now.
            ready: for how many seconds each ready replica has been so.
            target: replicas that are wanted.
            reported: failed starts that replicas ever reported.
            timeout_s: a start that takes longer has failed.
        """
        # A longer one is no start that anybody waited for; one that was stored once would count for twenty starts.
        kept = tuple(sample for sample in self.samples if sample <= timeout_s)
        found = replace(self, samples=kept)._arrived(at, ready).asked_for(at, max(0, target - len(ready)))
        if self.reported is None:
            found = replace(found, unseen=len(found.asked))
        late = [asked for asked in found.asked if at - asked > timeout_s]
        # A store that lost everything counts from 0 again.
        told = max(0, reported - self.reported) if self.reported is not None else 0
        failures = len(late) + told
        found = replace(found, reported=reported)
        if not failures:
            # Where nothing is asked for any more no start will ever succeed, and the alarm would stay.
            over = found.last_failure_at is not None and at - found.last_failure_at >= _FAILED_AGAIN_S
            return replace(found, failed=0, last_failure_at=None) if over else found
        in_a_row = found.failed if at - (found.last_failure_at or at) < _FAILED_AGAIN_S else 0
        # What was asked for together fails together, and is one failure.
        left = found.asked[min(failures, len(found.asked)) :]
        unseen = max(0, found.unseen - failures)
        return replace(found, asked=left, unseen=unseen, failed=in_a_row + 1, last_failure_at=at)

    def _arrived(self, at: float, ready: Mapping[str, float]) -> Starts:
        asked, samples, failed = list(self.asked), list(self.samples), self.failed
        unseen, least_s = self.unseen, self.least_s
        for name in sorted(ready, key=lambda one: -ready[one]):
            # One that was ready before anybody asked is back from silence.
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
        """Note that so many replicas are to come; those asked for last are the first that are not wanted any more."""
        asked = self.asked[:missing]
        added = (at for _ in range(missing - len(asked)))
        return replace(self, asked=(*asked, *added), unseen=min(self.unseen, len(asked)))
