"""Jobs, which are durable batches: JobService, and the feeder that runs their items like a client of the cluster."""

from router.jobs.execute import Executor
from router.jobs.open import JobParts, open_jobs
from router.jobs.servicer import JobServicer
from router.jobs.stores import JobStores
from router.jobs.tools import JobTools, drop

__all__ = ["Executor", "JobParts", "JobServicer", "JobStores", "JobTools", "drop", "open_jobs"]
