"""Durable batches: JobService, and the feeder that runs them as a client of the cluster."""

from router.jobs.execute import Executor
from router.jobs.feeder import JobFeeder
from router.jobs.servicer import JobServicer
from router.jobs.stores import JobStores

__all__ = ["Executor", "JobFeeder", "JobServicer", "JobStores"]
