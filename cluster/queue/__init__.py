"""The waiting room: contract in `base`, Redis in `redis_queue`, the in-memory twin in `memory_queue`."""

from cluster.queue.base import (
    Bell,
    Grant,
    Mail,
    Order,
    Queue,
    QueueEntry,
    QueueLimits,
    ReplicaBeat,
    ReplicaBeatReply,
    ReplicaRecord,
    RouterBeat,
    RouterBeatReply,
    Settlement,
    Submitted,
)
from cluster.queue.memory_queue import MemoryBell, MemoryQueue, MemoryStore
from cluster.queue.redis_bell import RedisBell
from cluster.queue.redis_queue import RedisQueue
from cluster.queue.settings import limits_from

__all__ = [
    "Bell",
    "Grant",
    "Mail",
    "MemoryBell",
    "MemoryQueue",
    "MemoryStore",
    "Order",
    "Queue",
    "QueueEntry",
    "QueueLimits",
    "RedisBell",
    "RedisQueue",
    "ReplicaBeat",
    "ReplicaBeatReply",
    "ReplicaRecord",
    "RouterBeat",
    "RouterBeatReply",
    "Settlement",
    "Submitted",
    "limits_from",
]
