"""Durable batches: the job store's contract, Redis, and the in-memory twin."""

from cluster.jobs.base import (
    Backlog,
    ItemResult,
    JobClaim,
    JobCursor,
    JobLimits,
    JobRecord,
    JobState,
    JobStore,
    JobUsage,
)
from cluster.jobs.memory_store import MemoryJobs, MemoryJobStore
from cluster.jobs.pools import JobPools, MemoryJobPools, RedisJobPools
from cluster.jobs.redis_store import RedisJobStore
from cluster.jobs.settings import job_limits_from

__all__ = [
    "Backlog",
    "ItemResult",
    "JobClaim",
    "JobCursor",
    "JobLimits",
    "JobPools",
    "JobRecord",
    "JobState",
    "JobStore",
    "JobUsage",
    "MemoryJobPools",
    "MemoryJobStore",
    "MemoryJobs",
    "RedisJobPools",
    "RedisJobStore",
    "job_limits_from",
]
