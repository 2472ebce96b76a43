"""Rendezvous hashing: routers that never talk send the same key to the same replica, and a lost replica moves only
its own keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

_MASK = (1 << 64) - 1


def ranked(key: bytes, replicas: Iterable[str]) -> list[str]:
    """Return the replicas in the key's own order, the same on every router."""
    seed = int.from_bytes(key, "little")
    return sorted(replicas, key=lambda replica: (_mix(seed ^ _number(replica)), replica), reverse=True)


@lru_cache(maxsize=4096)
def _number(replica: str) -> int:
    return int.from_bytes(blake2b(replica.encode(), digest_size=8).digest(), "little")


def _mix(value: int) -> int:
    """Scatter 64 bits (the finalizer of MurmurHash3)."""
    value = ((value ^ (value >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    value = ((value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK
    return value ^ (value >> 33)
