"""Output that arrives without a receiver."""

from __future__ import annotations


class OrphanedOutput:
    """Attempts that run on without a receiver, because of a bug or because the router that took one over never came.

    Such an attempt is aborted when its output has arrived for longer than any takeover may take. Times are in monotonic
    seconds.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since: dict[str, dict[int, float]] = {}
        """When output without a receiver came first, by replica and sink."""
        self.aborted = 0
        """Attempts that were stopped because of this."""

    def seen(self, replica_id: str, sink: int, now: float) -> bool:
        """Note output for a sink without a receiver. Return True, once, when its attempt is to be aborted."""
        since = self._since.setdefault(replica_id, {})
        if now - since.setdefault(sink, now) < self._patience_s:
            return False
        # Counted once; the abort ends it.
        since[sink] = float("inf")
        self.aborted += 1
        return True

    def over(self, replica_id: str, sink: int) -> None:
        """Forget an attempt that ended without a receiver."""
        self._since.get(replica_id, {}).pop(sink, None)

    def forget(self, replica_id: str) -> None:
        """Forget what a replica sent: it is gone, or its link starts anew and it parks attempts without a receiver."""
        self._since.pop(replica_id, None)

    def __len__(self) -> int:
        return sum(map(len, self._since.values()))
