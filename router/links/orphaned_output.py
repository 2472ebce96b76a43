"""Output that arrives for nobody."""

from __future__ import annotations


class OrphanedOutput:
    """Finds attempts that run on for no receiver: a bug, or a takeover whose new owner never came. Their abort is due
    when output has arrived for longer than any takeover may take. Moments are monotonic seconds.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since: dict[tuple[str, int], float] = {}
        self.aborted = 0
        """Attempts that were stopped for this."""

    def seen(self, replica_id: str, sink: int, now: float) -> bool:
        """Note output for a sink without a receiver; says whether its attempt is to be aborted, once."""
        if now - self._since.setdefault((replica_id, sink), now) < self._patience_s:
            return False
        # Counted once; the abort ends it.
        self._since[replica_id, sink] = float("inf")
        self.aborted += 1
        return True

    def forget(self, replica_id: str) -> None:
        """Forget a replica's: its link starts anew, and what nobody attaches to is parked there."""
        for key in [key for key in self._since if key[0] == replica_id]:
            del self._since[key]
