"""Redis keys of request records: content and lifetime of each.

All share the pool's hash slot. No key has a TTL: `add` removes what is beyond the bounds.
"""

from __future__ import annotations

from cluster.redis.keys import pool_key


def record_keys(pool: str) -> tuple[str, ...]:
    """Return every key that a script takes, in order."""
    return (
        pool_key(pool, "records"),  # HASH: request id -> records of its calls. Until removal.
        pool_key(pool, "records_recent"),  # ZSET: "tenant\0id" -> time of the first record (ms). The newest `most`.
        pool_key(pool, "records_missed"),  # ZSET: the same, of those that missed their SLO. For `missed_ms`.
        pool_key(pool, "records_tenants"),  # ZSET: "tenant\0time\0id" -> 0, as long as the record.
        pool_key(pool, "records_bytes"),  # STRING: bytes of all records.
    )
