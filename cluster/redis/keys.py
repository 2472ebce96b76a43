"""Names of keys: each belongs to a pool, and all keys of a pool share a hash slot."""

from __future__ import annotations

PREFIX = "penstock:1"
"""The digit is the schema version: version N and N+1 may share a Redis."""


def pool_key(pool: str, name: str) -> str:
    """Name one key of a pool."""
    return f"{PREFIX}:{{{pool}}}:{name}"
