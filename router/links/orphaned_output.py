"""Output that arrives without a receiver."""

from __future__ import annotations


class OrphanedOutput:
    """Attempts that run on without a receiver, because of a bug or because the router that took one over never came.

    Such an attempt is aborted when its output has arrived for longer than any takeover may take. Times are in monotonic
    seconds.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since: dict[tuple[str, int], float] = {}
        self.aborted = 0
        """Attempts that were stopped because of this."""

    def seen(self, replica_id: str, sink: int, now: float) -> bool:
        """Note output for a sink without a receiver. Return True, once, when its attempt is to be aborted."""
        if now - self._since.setdefault((replica_id, sink), now) < self._patience_s:
            return False
        # Counted once; the abort ends it.
        self._since[replica_id, sink] = float("inf")
        self.aborted += 1
        return True

    def forget(self, replica_id: str) -> None:
        """Forget what a replica sent: its link starts anew, and the replica parks attempts without a receiver."""
        for key in [key for key in self._since if key[0] == replica_id]:
            del self._since[key]
