"""Attempts that a router gave up while their replicas were out of reach."""

from __future__ import annotations

from collections import OrderedDict

MOST = 65_536
"""Most attempts that are remembered; a forgotten one ends when the replica's own grace is over."""


class AbandonedAttempts:
    """Attempts to stop when their replica is reached again, because they run elsewhere by now. A replica comes back
    when a stopped process continues or a broken network works again.
    """

    def __init__(self) -> None:
        self._attempts: OrderedDict[tuple[str, str], str] = OrderedDict()
        """(request id, attempt) to replica, oldest first."""

    def add(self, replica_id: str, request_id: str, attempt: str) -> None:
        """Remember an attempt."""
        self._attempts[request_id, attempt] = replica_id
        if len(self._attempts) > MOST:
            self._attempts.popitem(last=False)

    def take(self, replica_id: str) -> list[tuple[str, str]]:
        """Return and forget a replica's attempts."""
        found = [key for key, where in self._attempts.items() if where == replica_id]
        for key in found:
            del self._attempts[key]
        return found
