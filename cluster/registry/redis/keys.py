"""Redis keys of the registry: content and lifetime of each.

All share a hash slot of their own. No key has a TTL.
"""

from __future__ import annotations

from cluster.redis.keys import PREFIX

REGISTRY_KEYS = tuple(
    f"{PREFIX}:{{registry}}:{name}"
    for name in (
        "state",  # HASH: life, version, number and digest of the last line of the history, `floor`.
        "entries",  # HASH: "kind\0name" -> version, time, value. Deleted ones stay: the last 10,000.
        "versions",  # ZSET: "kind\0name" -> version of its last change.
        "gone",  # ZSET: the deleted ones among these.
        "history",  # LIST: changes, oldest first. The last `most_history`.
        "watchers",  # HASH: id -> what it reported at its last look, and when. For a minute.
    )
)
