"""Rendezvous hashing: routers that never talk to each other send a key to the same replica. The loss of a replica moves
only its own keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b

_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15
"""Odd factor that scatters: the upper bits of a product with it depend on all bits."""


class Rendezvous:
    """Order of a set of replicas for each key, the same on every router."""

    def __init__(self, replicas: Iterable[str]) -> None:
        self._names = tuple(replicas)
        self._numbers = tuple(map(_number, self._names))

    def ranked(self, key: bytes) -> Iterator[str]:
        """Yield the replicas in the key's order. The first costs one pass; the others are sorted only when needed."""
        if not self._names:
            return
        seed = int.from_bytes(key, "little")
        scores = [(seed ^ number) * _ODD & _MASK for number in self._numbers]
        first = scores.index(max(scores))
        yield self._names[first]
        for index in sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[1:]:
            yield self._names[index]


@lru_cache(maxsize=4096)
def _number(replica: str) -> int:
    return int.from_bytes(blake2b(replica.encode(), digest_size=8).digest(), "little")
