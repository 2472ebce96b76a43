"""The replicas that computed a beginning. Bounded: names without recent use are dropped first."""

from __future__ import annotations

from collections.abc import Sequence


class BlockIndex:
    """Map from a name to the replicas that ran it last, newest first.

    A lost replica is not removed: its id never comes back, and its names age like all others.

    The index has two generations instead of a list by age. Half of the names are young. A name that is used becomes
    young again. When the young half is full, the old half is dropped. That costs one dictionary write per use, and no
    links between entries.
    """

    def __init__(self, bound: int, spread: int) -> None:
        """Keep at most `bound` names, with at most `spread` replicas each."""
        self._half = max(1, bound // 2)
        self._spread = spread
        self._young: dict[int, tuple[str, ...]] = {}
        self._old: dict[int, tuple[str, ...]] = {}
        self._tuples: dict[tuple[str, ...], tuple[str, ...]] = {}
        """One object per combination of replicas, shared by names: a prompt of a hundred blocks needs one."""

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def replicas(self, name: int) -> tuple[str, ...]:
        """Return the replicas that ran a name, newest first; empty when the name is not known."""
        return self._young.get(name) or self._old.get(name) or ()

    def deepest(self, names: Sequence[int]) -> int:
        """Return the depth of the deepest known name: its position from 1 on; 0 when none is known."""
        for depth in range(len(names), 0, -1):
            if names[depth - 1] in self._young or names[depth - 1] in self._old:
                return depth
        return 0

    def note(self, names: Sequence[int], replica: str) -> None:
        """Remember that a replica now has these names."""
        # The longest beginning goes first, so that shorter ones, which are used more often, are younger.
        for name in reversed(names):
            known = self._young.get(name)
            if known is None:
                known = self._old.pop(name, ())
                if len(self._young) >= self._half:
                    self._old, self._young = self._young, {}
                    # Tuples in use come back; those of lost replicas do not.
                    self._tuples = {}
            if not known or known[0] != replica:
                known = self._shared(replica, known)
            self._young[name] = known

    def _shared(self, replica: str, known: tuple[str, ...]) -> tuple[str, ...]:
        wanted = (replica, *(other for other in known if other != replica))[: self._spread]
        return self._tuples.setdefault(wanted, wanted)
