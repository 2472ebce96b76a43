"""The waiting room: contract in `base`, Redis in `redis_queue`, the in-memory twin in `memory_queue`."""

from cluster.queue.base import (
    MAX_CHOICES,
    NO_QUOTA,
    Adopted,
    Bell,
    Grant,
    KnownRequest,
    Mail,
    Order,
    Queue,
    QueueEntry,
    QueueLimits,
    Quota,
    ReplicaBeat,
    ReplicaBeatReply,
    ReplicaRecord,
    RouterBeat,
    RouterBeatReply,
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
    "Adopted",
    "Bell",
    "Grant",
    "KnownRequest",
    "Mail",
    "MemoryBell",
    "MemoryQueue",
    "MemoryStore",
    "Order",
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
    "Settlement",
    "Submitted",
    "UsageLine",
    "choice_ids",
    "limits_from",
]
