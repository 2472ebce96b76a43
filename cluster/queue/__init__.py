"""The waiting room: contract in `base`, Redis in `redis_queue`, the in-memory twin in `memory_queue`."""

from cluster.queue.base import Bell, Queue
from cluster.queue.beats import (
    POSITIONS,
    PoolView,
    ReplicaBeat,
    ReplicaBeatReply,
    ReplicaRecord,
    RouterBeat,
    RouterBeatReply,
    RouterReport,
)
from cluster.queue.entries import (
    MAX_CHOICES,
    NO_QUOTA,
    Adopted,
    Grant,
    KnownRequest,
    Mail,
    Mark,
    Marks,
    Order,
    QueueEntry,
    QueueLimits,
    Quota,
    Settlement,
    Submitted,
    UsageLine,
    choice_ids,
)
from cluster.queue.memory_queue import MemoryBell, MemoryQueue, MemoryStore
from cluster.queue.redis_bell import RedisBell
from cluster.queue.redis_queue import RedisQueue
from cluster.queue.settings import limits_from

__all__ = [
    "MAX_CHOICES",
    "NO_QUOTA",
    "POSITIONS",
    "Adopted",
    "Bell",
    "Grant",
    "KnownRequest",
    "Mail",
    "Mark",
    "Marks",
    "MemoryBell",
    "MemoryQueue",
    "MemoryStore",
    "Order",
    "PoolView",
    "Queue",
    "QueueEntry",
    "QueueLimits",
    "Quota",
    "RedisBell",
    "RedisQueue",
    "ReplicaBeat",
    "ReplicaBeatReply",
    "ReplicaRecord",
    "RouterBeat",
    "RouterBeatReply",
    "RouterReport",
    "Settlement",
    "Submitted",
    "UsageLine",
    "choice_ids",
    "limits_from",
]
