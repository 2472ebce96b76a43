"""Sorted set with scores, like a ZSET in Redis."""

from __future__ import annotations

from bisect import bisect_left, insort


class ScoredSet:
    """Names with scores, ordered by score and then by name.

    A change moves a part of the list in memory, which is cheap up to some ten thousand names.
    """

    def __init__(self) -> None:
        self._scores: dict[str, float] = {}
        self._order: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._scores)

    def __contains__(self, name: str) -> bool:
        return name in self._scores

    def score(self, name: str) -> float | None:
        """Return a name's score; None if it is not in the set."""
        return self._scores.get(name)

    def add(self, name: str, score: float) -> None:
        """Add a name, or give it another score."""
        if self._scores.get(name) == score:
            return
        self.discard(name)
        self._scores[name] = score
        insort(self._order, (score, name))

    def discard(self, name: str) -> bool:
        """Remove a name; return whether it was in the set."""
        score = self._scores.pop(name, None)
        if score is None:
            return False
        del self._order[bisect_left(self._order, (score, name))]
        return True

    def first(self, n: int) -> list[tuple[float, str]]:
        """Return the first n as (score, name)."""
        return self._order[:n]

    def up_to(self, score: float, limit: int | None = None) -> list[str]:
        """Return names whose score is at most `score`, in order."""
        names = [name for _, name in self._order[: bisect_left(self._order, (score, "\U0010ffff"))]]
        return names if limit is None else names[:limit]

    def rank(self, name: str) -> int:
        """Return how many names come before this one, which must be in the set."""
        return bisect_left(self._order, (self._scores[name], name))

    def prune(self, score: float) -> None:
        """Remove all names whose score is at most `score`."""
        for name in self.up_to(score):
            self.discard(name)

    def clear(self) -> None:
        self._scores.clear()
        self._order.clear()
