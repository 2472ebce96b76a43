"""The feeder: every router looks for jobs to run. A job whose router is gone continues at another one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from cluster.autoscaler.router_report import JobWork
from cluster.errors import PenstockError, QueueUnavailableError
from cluster.jobs.contract import JobRecord, JobStore
from cluster.lifecycle import TaskOwner
from cluster.settings import JobsSettings
from penstock.batch.input import ENDPOINTS, Endpoints
from router.identity.revocations import Revocations
from router.jobs.execute import Execute
from router.jobs.run import JobRun, RunTools

_LOG = logging.getLogger(__name__)


class JobFeeder:
    """Feeder of all pools of one router. It claims and runs up to `jobs.jobs_per_router` jobs of each pool."""

    def __init__(
        self,
        router_id: str,
        stores: Mapping[str, JobStore],
        execute: Execute,
        settings: JobsSettings,
        capacity: Callable[[str], int],
        on_item: Callable[[str, bool], None] = lambda _pool, _failed: None,
        *,
        line_bytes: Callable[[JobRecord, bytes], int] = lambda _record, _result: 0,
        endpoints: Endpoints = ENDPOINTS,
        revocations: Revocations | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`capacity` takes a pool's name and returns how many sequences its replicas run together. `on_item` is called
        for every stored result with the pool and whether the item failed. `line_bytes` returns the bytes of a result's
        line in a file, and `endpoints` has readers of its requests. `revocations` end the jobs of revoked keys.
        """
        self._router_id = router_id
        self._stores = stores
        self._execute = execute
        self._settings = settings
        self._capacity = capacity
        self._on_item = on_item
        self._line_bytes = line_bytes
        self._endpoints = endpoints
        self._revocations = revocations or Revocations()
        self._monotonic = monotonic
        self._wall_s = wall_s
        self._owner = TaskOwner("jobs")
        self._runs: dict[str, set[JobRun]] = {pool: set() for pool in stores}
        self._draining = asyncio.Event()
        self._looked_at: set[str] = set()
        """Pools whose jobs are looked for."""
        self._nudges = {pool: asyncio.Event() for pool in stores}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def runs(self) -> int:
        """Number of jobs that this router feeds."""
        return sum(map(len, self._runs.values()))

    def work(self, pool: str) -> tuple[JobWork, ...]:
        """Return what is left of the pool's jobs that this router feeds. Safe to call from another thread."""
        return tuple(run.work() for run in self._runs.get(pool, set()).copy())

    def start(self) -> None:
        """Start to look for jobs."""
        for pool, store in self._stores.items():
            if pool not in self._looked_at:
                self.join(pool, store)

    def join(self, pool: str, store: JobStore) -> None:
        """Look for the jobs of another pool from now on."""
        self._looked_at.add(pool)
        self._runs.setdefault(pool, set())
        self._nudges[pool] = asyncio.Event()
        self._owner.spawn(self._look(pool, store), f"look.{pool}")

    def leave(self, pool: str) -> None:
        """Claim no more jobs of a pool. Those that run are given back when their items in flight have ended."""
        self._looked_at.discard(pool)
        for run in self._runs[pool]:
            run.stop()
        self._nudges[pool].set()

    def feeds(self, pool: str) -> bool:
        """Return whether a job of the pool runs here."""
        return bool(self._runs.get(pool))

    def nudge(self, pool: str) -> None:
        """Look for a job of this pool now, because one was submitted here."""
        self._nudges[pool].set()

    async def drain(self, seconds: float) -> None:
        """Claim nothing more. Give the jobs back when their items in flight have ended, or after `seconds`."""
        self._draining.set()
        for runs in self._runs.values():
            for run in runs:
                run.stop()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            _LOG.warning("jobs.drain_over", extra={"jobs": self.runs})

    async def close(self) -> None:
        """Stop. When it returns nothing is in flight, and every lease is given back. May be called twice."""
        await self._owner.close()

    async def _look(self, pool: str, store: JobStore) -> None:
        nudge = self._nudges[pool]
        takeover_from = 0.0
        while not self._stops(pool, nudge):
            try:
                await store.sweep()
                await self._claim(pool, store, takeover=self._monotonic() >= takeover_from)
            except QueueUnavailableError:
                # The other feeders could not renew their leases either. Leave them time to do it.
                takeover_from = self._monotonic() + self._settings.lease_s
            except PenstockError:
                _LOG.exception("jobs.look_failed", extra={"pool": pool})
            try:
                async with asyncio.timeout(self._settings.poll_s):
                    await nudge.wait()
            except TimeoutError:
                continue
            nudge.clear()

    def _stops(self, pool: str, nudge: asyncio.Event) -> bool:
        # A pool that left and came again has another event.
        return self._draining.is_set() or pool not in self._looked_at or self._nudges[pool] is not nudge

    async def _claim(self, pool: str, store: JobStore, *, takeover: bool) -> None:
        runs, nudge = self._runs[pool], self._nudges[pool]
        while len(runs) < self._settings.jobs_per_router and not self._stops(pool, nudge):
            claim = await store.claim(self._router_id, takeover=takeover)
            if claim is None:
                return
            if self._stops(pool, nudge):
                await store.release(claim)
                return
            _LOG.info("job.claimed", extra={"job": claim.record.job_id, "results": claim.record.results})
            tools = RunTools(
                store,
                self._execute,
                self._settings,
                capacity=lambda: self._capacity(pool),
                on_item=lambda failed: self._on_item(pool, failed),
                line_bytes=self._line_bytes,
                endpoints=self._endpoints,
                wall_s=self._wall_s,
            )
            run = JobRun(claim, tools)
            runs.add(run)
            self._idle.clear()
            self._owner.spawn(self._run(pool, run), "run")

    async def _run(self, pool: str, run: JobRun) -> None:
        work = self._revocations.began(run.api_key, run.created_ms, run.revoke)
        try:
            await run.run()
        finally:
            work.close()
            if len(self._runs[pool]) == self._settings.jobs_per_router:
                # Now there is room for a job that waited.
                self._nudges[pool].set()
            self._runs[pool].discard(run)
            if not self.runs:
                self._idle.set()
