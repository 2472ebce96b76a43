"""A job service on given stores, whose engines follow every constraint."""

from __future__ import annotations

from cluster.settings import JobsSettings
from penstock.models import StructuredOutput
from router.jobs import JobServicer, JobStores, JobTools
from router.routing import Aliases
from router.validation import RequestLimits


def job_servicer(stores: JobStores, aliases: Aliases | None = None) -> JobServicer:
    async def followed(_pool: str, _constraint: StructuredOutput) -> str:
        return ""

    return JobServicer(JobTools(stores, JobsSettings(), RequestLimits(), lambda _pool: None, followed, aliases))
