"""Redis keys of responses: content and lifetime of each.

All share one hash slot, so they are on one server of a Redis Cluster. No key has a TTL: `sweep` removes what is due by
the store's clock, so what a response counts against its tenant's bounds is always given back.
"""

from __future__ import annotations

from cluster.redis.keys import PREFIX
from cluster.responses.contract import ResponseName

_TAG = f"{PREFIX}:{{responses}}"
OPEN_KEY = f"{_TAG}:open"
"""ZSET: member -> end of the lease (ms), of responses that run and have one. Until the response ends."""
DUE_KEY = f"{_TAG}:due"
"""ZSET: member -> time of its deletion (ms). Until deletion."""
USAGE_KEY = f"{_TAG}:usage"
"""HASH: "running\\0tenant", "bytes\\0tenant" -> count. A field lives while it is not 0."""


def response_keys(name: ResponseName) -> tuple[str, ...]:
    """Return every key that a script takes, in order."""
    return (
        f"{_TAG}:response:{name.response_id}",  # HASH: its fields. Until deletion.
        f"{_TAG}:journal:{name.response_id}",  # HASH: number -> chunk of output. Until the response ends.
        f"{_TAG}:ended:{name.tenant}",  # ZSET: id -> time of its end (ms). Until deletion.
        OPEN_KEY,
        DUE_KEY,
        USAGE_KEY,
    )
