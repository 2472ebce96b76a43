"""Redis keys of jobs: content and lifetime of each.

All contain the pool in literal braces, like the queue's. No key has a TTL: `sweep` removes what is due by the store's
clock. So no job is ever removed in part, and what it counts against the limits is always given back.
"""

from __future__ import annotations

from cluster.jobs.ids import file_of
from cluster.redis.keys import pool_key

JOB_KEYS = (
    "record",  # HASH: the job's fields. From the first byte of the upload until deletion.
    "items",  # HASH: block number -> block of bodies. Until the job ends.
    "sizes",  # LIST: items per block. Until the job ends.
    "results",  # HASH: offset -> result. Until deletion.
    "done",  # STRING: bitmap of items with a result. Until the job ends.
    "failures",  # HASH: item -> executions that failed, and name of the last one. Until the job ends.
    "holds",  # ZSET: jobs on this file by when they expire (ms), or those that left items are deleted. Until then.
)
SHARED_KEYS = (
    "open",  # ZSET: open jobs by when they may be claimed (ms): creation, or end of the lease. Until the job ends.
    "due",  # ZSET: every job by the time when it is dropped, expires or is deleted (ms). Until deletion.
    "index",  # ZSET: score 0, "tenant\0created\0id" of sealed jobs. Until deletion.
    "files",  # ZSET: the same of files. Until deletion.
    "names",  # HASH: "tenant\0client key" -> id. Until deletion.
    "usage",  # HASH: "what\0tenant", "what\0" for all -> jobs, items, bytes, feeding. A field lives while it is not 0.
)


_OF_THE_FILE = ("items", "sizes", "holds")


def job_keys(pool: str, job_id: str) -> tuple[str, ...]:
    """Return every key that a script on one job takes, in order. A job on a file has the file's items."""
    file_id = file_of(job_id) or job_id
    own = tuple(pool_key(pool, f"job:{file_id if name in _OF_THE_FILE else job_id}:{name}") for name in JOB_KEYS)
    return (*own, *(shared_key(pool, name) for name in SHARED_KEYS))


def shared_key(pool: str, name: str) -> str:
    """Return a key that all jobs of a pool share."""
    return pool_key(pool, f"jobs:{name}")
