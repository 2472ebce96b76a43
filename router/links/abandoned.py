"""Attempts that a router gave up while it did not reach their replicas."""

from __future__ import annotations

from collections import OrderedDict

MOST = 65_536
"""Attempts that are remembered; for one that is forgotten the replica's own grace decides."""


class AbandonedAttempts:
    """Remembers them, so that a replica that comes back (a process that was stopped and goes on, a mended network) is
    told at once to stop what runs elsewhere by now.
    """

    def __init__(self) -> None:
        self._attempts: OrderedDict[tuple[str, str], str] = OrderedDict()
        """(request id, attempt) to replica, oldest first."""

    def add(self, replica_id: str, request_id: str, attempt: str) -> None:
        """Note an attempt."""
        self._attempts[request_id, attempt] = replica_id
        if len(self._attempts) > MOST:
            self._attempts.popitem(last=False)

    def take(self, replica_id: str) -> list[tuple[str, str]]:
        """Return and forget a replica's attempts."""
        found = [key for key, where in self._attempts.items() if where == replica_id]
        for key in found:
            del self._attempts[key]
        return found
