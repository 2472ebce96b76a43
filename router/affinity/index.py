"""Remembers which replicas computed which beginnings; bounded, what was not touched for long goes first."""

from __future__ import annotations

from collections.abc import Sequence


class BlockIndex:
    """Maps a name to the replicas that ran it last, newest first.

    A replica that is gone is not taken out: its id never comes back, and its names age like all others.

    Two generations in place of a list by age: half of the bound is young, a touched name becomes young again, and when
    the young half is full the old one goes. That costs a dictionary write per touch and no links between entries.
    """

    def __init__(self, bound: int, spread: int) -> None:
        """Keep at most `bound` names, with at most `spread` replicas each."""
        self._half = max(1, bound // 2)
        self._spread = spread
        self._young: dict[int, tuple[str, ...]] = {}
        self._old: dict[int, tuple[str, ...]] = {}
        self._tuples: dict[tuple[str, ...], tuple[str, ...]] = {}
        """One object per combination of replicas: a prompt of a hundred blocks needs one, not a hundred."""

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def replicas(self, name: int) -> tuple[str, ...]:
        """Return where a name was seen, newest first; empty when it is not known."""
        return self._young.get(name) or self._old.get(name) or ()

    def deepest(self, names: Sequence[int]) -> int:
        """Return how many of the names, from the first on, lead to the deepest one known; 0 for none."""
        for depth in range(len(names), 0, -1):
            if names[depth - 1] in self._young or names[depth - 1] in self._old:
                return depth
        return 0

    def note(self, names: Sequence[int], replica: str) -> None:
        """Remember that a replica now has these names."""
        # The longest beginning first, so that of two halves of a prompt the shorter, more often used one is younger.
        for name in reversed(names):
            known = self._young.get(name)
            if known is None:
                known = self._old.pop(name, ())
                if len(self._young) >= self._half:
                    self._old, self._young = self._young, {}
                    # Those that are still of use come back; replicas that are gone never do.
                    self._tuples = {}
            if not known or known[0] != replica:
                known = self._shared(replica, known)
            self._young[name] = known

    def _shared(self, replica: str, known: tuple[str, ...]) -> tuple[str, ...]:
        wanted = (replica, *(other for other in known if other != replica))[: self._spread]
        return self._tuples.setdefault(wanted, wanted)
