"""Redis keys of the autoscaler: content and lifetime of each. All have the pool's hash tag."""

from __future__ import annotations

from cluster.redis.keys import pool_key


def control_keys(pool: str) -> tuple[str, str, str]:
    """Return the keys that the scripts take, in order.

    `control` (HASH, for ever) is also read by the queue's heartbeats; `decisions` (LIST) is bounded by number;
    `forecast` (STRING, for ever) is the record of four weeks' load, 34 KB.
    """
    return pool_key(pool, "control"), pool_key(pool, "decisions"), pool_key(pool, "forecast")


def fits_key(pool: str) -> str:
    """Return the key of the HASH of step models: group -> fit. For ever; 200 bytes per group that ever ran."""
    return pool_key(pool, "fits")
