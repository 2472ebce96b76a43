"""Names of keys. Each key belongs to a pool, and all keys of a pool share a hash slot."""

from __future__ import annotations

PREFIX = "penstock:1"
"""Prefix of all keys. The digit is the schema version: versions N and N+1 may share a Redis."""


def pool_key(pool: str, name: str) -> str:
    """Return the full name of a pool's key."""
    return f"{PREFIX}:{{{pool}}}:{name}"
