"""Composition of a router's part in jobs: where they are kept, who feeds them, and the calls on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from cluster.errors import ModelNotFoundError
from cluster.jobs.contract import JobRecord
from cluster.settings import Settings
from penstock.batch.input import Endpoints
from penstock.models import ModelTask
from router.catalog import Catalog
from router.dispatch.pool import Pool
from router.embeddings.admit import PoolingAdmission
from router.identity.revocations import Revocations
from router.inference.open import InferenceParts
from router.jobs.execute import Executor
from router.jobs.feeder import JobFeeder
from router.jobs.servicer import JobServicer
from router.jobs.stores import JobStores
from router.jobs.tools import JobTools
from router.metrics import RouterMetrics
from router.records.keeper import RecordKeeper


@dataclass(frozen=True, slots=True)
class JobParts:
    """A router's part in jobs."""

    stores: JobStores
    feeder: JobFeeder
    tools: JobTools
    servicer: JobServicer


def open_jobs(
    settings: Settings,
    router_id: str,
    stores: JobStores,
    *,
    pools: Mapping[str, Pool],
    catalog: Catalog,
    inference: InferenceParts,
    pooling: PoolingAdmission,
    metrics: RouterMetrics,
    records: RecordKeeper,
    line_bytes: Callable[[JobRecord, bytes], int],
    endpoints: Endpoints,
    revocations: Revocations,
) -> JobParts:
    """Compose the parts, and let each pool know what is left of its jobs.

    `line_bytes` and `endpoints` are for files of requests, and `revocations` end the jobs of revoked keys, as for
    `JobFeeder`.
    """

    def served(name: str) -> Pool:
        if (pool := pools.get(name)) is None:
            raise ModelNotFoundError(name, sorted(pools))
        return pool

    def task(name: str) -> ModelTask | None:
        info = catalog.known(pools[name]) if name in pools else None
        return None if info is None else info.task

    execute = Executor(inference.routed, pooling, inference.limits, metrics, records.closed)
    feeder = JobFeeder(
        router_id,
        stores.served,
        execute,
        settings.jobs,
        # A pool that was just left runs nothing.
        capacity=lambda name: pool.replicas.capacity() if (pool := pools.get(name)) is not None else 0,
        on_item=metrics.job_item,
        line_bytes=line_bytes,
        endpoints=endpoints,
        revocations=revocations,
    )
    for name, pool in pools.items():
        pool.job_work = partial(feeder.work, name)
    tools = JobTools(
        stores,
        settings.jobs,
        inference.limits,
        feeder.nudge,
        lambda name, constraint: inference.constraints.problem(served(name), constraint),
        inference.forwarding.aliases,
        task,
    )
    return JobParts(stores, feeder, tools, JobServicer(tools))
