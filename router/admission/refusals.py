"""Memory of calls that were refused for a while, so that a record tells what a client waited for before it was let in.

A refused client comes back with the same call. To it the time between is a part of the same wait.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from cluster.errors import NotInTimeError, PenstockError, QueueFullError, QuotaExceededError, UnavailableError
from router.generation.wait import EarlierRefusals

REMEMBERED_S = 120.0
"""Seconds after the last refusal for which a call counts as the same one."""
MOST_REMEMBERED = 4_096
"""Most calls; the oldest are forgotten first."""
COUNTED_S = 60.0
"""Seconds of refusals that `refused` counts."""
_MOST_COUNTED = 10_000


COMES_BACK = (UnavailableError, QueueFullError, QuotaExceededError, NotInTimeError)
"""Refusals after which the same call may be let in."""


@dataclass(frozen=True, slots=True)
class CallName:
    """Name of a call: whose it is and what it asks for. Nothing is computed before it is needed."""

    tenant: str
    asked: object
    """Whatever describes it the same each time."""
    more: object = None

    def digest(self) -> bytes:
        """Return what two calls that ask for the same have in common."""
        return hashlib.blake2b(repr((self.asked, self.more)).encode(), digest_size=16).digest()


class Refusals:
    """Refusals of one pool by this router."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: OrderedDict[tuple[str, bytes], EarlierRefusals] = OrderedDict()
        self._tenants: Counter[str] = Counter()
        """Number of calls that are remembered of each tenant: only theirs are looked up."""
        self._quota: deque[tuple[float, str]] = deque(maxlen=_MOST_COUNTED)

    def __len__(self) -> int:
        return len(self._calls)

    def note(self, call: CallName, error: PenstockError) -> bool:
        """Remember a refusal; return whether it is the call's first."""
        now, key = self._clock(), (call.tenant, call.digest())
        known = self._forget(key)
        self._calls[key] = _refusal(error, now) if known is None else replace(known, last_at=now, times=known.times + 1)
        self._tenants[call.tenant] += 1
        if len(self._calls) > MOST_REMEMBERED:
            self._forget(next(iter(self._calls)))
        if isinstance(error, QuotaExceededError):
            self._quota.append((now, call.tenant))
        return known is None

    def take(self, call: CallName) -> EarlierRefusals | None:
        """Return and forget what is remembered of a call; None where it was not refused a short time ago."""
        if call.tenant not in self._tenants:
            return None
        now = self._clock()
        while self._calls and now - next(iter(self._calls.values())).last_at > REMEMBERED_S:
            self._forget(next(iter(self._calls)))
        return self._forget((call.tenant, call.digest()))

    def _forget(self, key: tuple[str, bytes]) -> EarlierRefusals | None:
        known = self._calls.pop(key, None)
        if known is not None:
            self._tenants[key[0]] -= 1
            if not self._tenants[key[0]]:
                del self._tenants[key[0]]
        return known

    def refused(self) -> Counter[str]:
        """Count the refusals by quota in the last minute, by tenant."""
        since = self._clock() - COUNTED_S
        while self._quota and self._quota[0][0] < since:
            self._quota.popleft()
        return Counter(tenant for _, tenant in self._quota)


def _refusal(error: PenstockError, now: float) -> EarlierRefusals:
    found = EarlierRefusals(now, now, 1, error.reason, str(error))
    if isinstance(error, QuotaExceededError):
        # A budget's limit is in its sentence.
        return replace(found, quota=error.quota, limit=int(error.limit) if error.used is None else 0)
    return found
