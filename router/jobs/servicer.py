"""JobService: submission of jobs, watching, listing, cancelling, deleting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from cluster.errors import (
    InvalidRequestError,
    JobExistsError,
    JobNotFoundError,
    JobResultsLostError,
    ModelNotFoundError,
    QueueUnavailableError,
    ShuttingDownError,
)
from cluster.jobs.contract import JobRecord, JobState, JobStore
from cluster.jobs.ids import new_id, pool_of
from cluster.lifecycle import TaskOwner
from penstock.v1 import jobs_pb2 as api
from router.call_context import CallContext
from router.identity import Caller, may_use, require_class, require_model
from router.jobs.messages import WatchPlace, job_message, page_token, parse_page_token
from router.jobs.tools import JobTools, append, drop
from router.jobs.upload import Upload, check_header, class_of, stored_header
from router.validation.violations import Violations, shown

_LOG = logging.getLogger(__name__)

WATCH_PERIOD_S = 0.2
"""Pause between two looks of a watching call at the store."""
RESULTS_PER_LOOK = 32
"""Few, because each result may have megabytes."""
RESPONSE_BYTES = 1 << 20
"""A response takes no more results once it has more bytes than this."""
_BROKEN_OFF_S = 0.05
"""Time in which a router hears that a call broke off."""
MAX_PAGE = 500
DEFAULT_PAGE = 50


class JobServicer:
    """The job service. A job's id begins with its pool's name and a dot."""

    def __init__(self, tools: JobTools) -> None:
        self._tools = tools
        self._stores = tools.stores
        self._settings = tools.settings
        self._limits = tools.limits
        self._nudge = tools.nudge
        self._constraint_problem = tools.constraint_problem
        self._owner = TaskOwner("jobs.service")
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """Refuse new uploads, and end watching calls so that clients continue at another router."""
        self._draining.set()

    async def close(self) -> None:
        """Cancel what goes on after a call. May be called twice."""
        await self._owner.close()

    # --- submission ---------------------------------------------------------------------------------------------------

    async def SubmitJob(  # noqa: N802
        self, requests: AsyncIterator[api.SubmitJobRequest], context: CallContext, caller: Caller
    ) -> api.SubmitJobResponse:
        """Store a job, or return the job that has its idempotency key already."""
        self._check_up()
        header = await _first(requests)
        run_within_s = check_header(header, self._settings)
        pool = self._pool_for(header, caller)
        store = self._stores.served[pool]
        key = header.idempotency_key
        known = await self._stores.named(caller.tenant, key, pool) if key else None
        # A job that is stored already stays what it is, whatever its pool serves by now.
        task = self._tools.task(pool) if known is None else None
        upload = Upload(header, self._settings, self._limits, task)
        if known is not None:
            await _only_read(upload, requests)
            return _existing(known, upload, key)
        job_id = new_id(pool)
        await store.create(job_id, caller.tenant, stored_header(header, caller))
        await self._fill(store, pool, job_id, upload, requests)
        try:
            record = await store.seal(job_id, key, upload.digest, round(run_within_s * 1000))
        except QueueUnavailableError:
            # It may still have happened. Then the job stays where its client finds it by its key.
            if not key:
                self._owner.spawn_unless_closed(drop(store, job_id, begun=True), "drop")
            raise
        if record.job_id != job_id:
            self._owner.spawn_unless_closed(drop(store, job_id), "drop")
            return _existing(record, upload, key)
        self._nudge(pool)
        _LOG.info("job.submitted", extra={"job": job_id, "items": record.items})
        return api.SubmitJobResponse(job=job_message(record))

    async def _fill(
        self, store: JobStore, pool: str, job_id: str, upload: Upload, requests: AsyncIterator[api.SubmitJobRequest]
    ) -> None:
        stored = 0
        try:
            async for chunk in _chunks(requests):
                for block in upload.add(chunk):
                    await append(store, job_id, stored, block)
                    stored += len(block)
                await self._judge(pool, upload)
            if rest := upload.rest():
                await append(store, job_id, stored, rest)
            # An upload that broke off ends like a complete one. The cancel that tells them apart comes a moment later.
            # A job that is sealed before it would run in part.
            await asyncio.sleep(_BROKEN_OFF_S)
        except BaseException:
            # In a task of its own, because a cancelled call can't wait for it.
            self._owner.spawn_unless_closed(drop(store, job_id), "drop")
            raise

    async def _judge(self, pool: str, upload: Upload) -> None:
        constraints, upload.constraints = upload.constraints, {}
        found = Violations()
        for constraint, (index, custom_id) in constraints.items():
            if problem := await self._constraint_problem(pool, constraint):
                field = f"items[{index}].request.{problem.field}"
                found.add(field, f"{problem.description} (custom_id {shown(custom_id)})")
        found.raise_any()

    def _pool_for(self, header: api.JobHeader, caller: Caller) -> str:
        """Return the pool that keeps a job. Items of an alias go to its targets one by one, when they run."""
        require_class(caller, class_of(header))
        require_model(caller, header.model)
        if not (pool := self._tools.pool(header.model)):
            raise ModelNotFoundError(header.model, [name for name in self._tools.models() if may_use(caller, name)])
        return pool

    # --- watching -----------------------------------------------------------------------------------------------------

    async def WatchJob(self, request: api.WatchJobRequest, context: CallContext, caller: Caller) -> None:  # noqa: N802
        place = WatchPlace.parse(request.resume_token)
        store, record = await self._find(request.job_id, caller)
        sent: JobRecord | None = None
        while True:
            news: list[api.JobResult] = []
            rewound = False
            if not request.progress_only and (record.results != place.offset or record.state.ended):
                news, rewound = await _news(store, record.job_id, place)
            if rewound:
                place = WatchPlace()
            if news:
                place = WatchPlace(news[-1].offset + 1, news[-1].execution_id)
                # The counts must not be older than the results.
                store, record = await self._find(request.job_id, caller)
            behind = not request.progress_only and (rewound or place.offset < record.results)
            if behind and record.state.ended and not (news or rewound):
                raise JobResultsLostError(record.job_id, record.results, place.offset)
            if news or rewound or sent is None or (sent.state, sent.results) != (record.state, record.results):
                job = job_message(record)
                if behind and record.state.ended:
                    # Send the end once, after the last result.
                    job.state = api.JOB_STATE_RUNNING
                await context.write(
                    api.WatchJobResponse(results=news, job=job, resume_token=place.token(), rewound=rewound)
                )
                # An end that was not sent yet is news in the next turn.
                sent = None if behind else record
            if record.state.ended and not behind:
                return
            self._check_up()
            if not news and not rewound:
                await self._pause()
            store, record = await self._find(request.job_id, caller)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(WATCH_PERIOD_S):
                await self._draining.wait()
        except TimeoutError:
            return

    # --- the rest -----------------------------------------------------------------------------------------------------

    async def GetJob(self, request: api.GetJobRequest, context: CallContext, caller: Caller) -> api.GetJobResponse:  # noqa: N802
        _store, record = await self._find(request.job_id, caller)
        return api.GetJobResponse(job=job_message(record))

    async def ListJobs(  # noqa: N802
        self, request: api.ListJobsRequest, context: CallContext, caller: Caller
    ) -> api.ListJobsResponse:
        """Return a page of the tenant's jobs, the newest first."""
        size = request.page_size or DEFAULT_PAGE
        found = Violations()
        found.number("page_size", size, 1, MAX_PAGE)
        found.raise_any()
        before = parse_page_token(request.page_token)
        stores = await self._stores.every()
        pages = await asyncio.gather(*(store.list_jobs(caller.tenant, before, size + 1) for store in stores))
        records = [record for page in pages for record in page]
        records.sort(key=lambda record: (record.created_ms, record.job_id), reverse=True)
        return api.ListJobsResponse(
            jobs=[job_message(record) for record in records[:size]],
            next_page_token=page_token(records[size - 1]) if len(records) > size else "",
        )

    async def CancelJob(  # noqa: N802
        self, request: api.CancelJobRequest, context: CallContext, caller: Caller
    ) -> api.CancelJobResponse:
        """Cancel a job, and return it as it is then."""
        store, _record = await self._find(request.job_id, caller)
        await store.cancel(request.job_id)
        _store, record = await self._find(request.job_id, caller)
        return api.CancelJobResponse(job=job_message(record))

    async def DeleteJob(  # noqa: N802
        self, request: api.DeleteJobRequest, context: CallContext, caller: Caller
    ) -> api.DeleteJobResponse:
        store, _record = await self._find(request.job_id, caller)
        await store.delete(request.job_id)
        return api.DeleteJobResponse()

    async def _find(self, job_id: str, caller: Caller) -> tuple[JobStore, JobRecord]:
        if not job_id:
            raise InvalidRequestError.of("job_id", "is required, got none")
        store = await self._stores.find(pool_of(job_id))
        record = await store.get(job_id) if store is not None else None
        if store is None or record is None or record.tenant != caller.tenant or record.state is JobState.UPLOADING:
            raise JobNotFoundError(job_id)
        return store, record

    def _check_up(self) -> None:
        if self._draining.is_set():
            raise ShuttingDownError("this router is shutting down", 0.1)


async def _first(requests: AsyncIterator[api.SubmitJobRequest]) -> api.JobHeader:
    async for request in requests:
        if request.WhichOneof("part") == "header":
            return request.header
        break
    raise InvalidRequestError.of("header", "is required in the first message")


async def _chunks(requests: AsyncIterator[api.SubmitJobRequest]) -> AsyncIterator[api.JobItems]:
    async for request in requests:
        if request.WhichOneof("part") != "items":
            raise InvalidRequestError.of("items", "is required in every message after the first")
        yield request.items


async def _only_read(upload: Upload, requests: AsyncIterator[api.SubmitJobRequest]) -> None:
    async for chunk in _chunks(requests):
        for _block in upload.add(chunk):
            # Other calls' streams must not wait for it.
            await asyncio.sleep(0)
    upload.rest()


def _existing(record: JobRecord, upload: Upload, key: str) -> api.SubmitJobResponse:
    if record.digest != upload.digest:
        raise JobExistsError(key, record.job_id)
    return api.SubmitJobResponse(job=job_message(record), existed=True)


async def _news(store: JobStore, job_id: str, place: WatchPlace) -> tuple[list[api.JobResult], bool]:
    """Return results after a place, and whether the results before it are not the watcher's any more."""
    known = 1 if place.offset else 0
    news: list[api.JobResult] = []
    size, wanted = 0, 1
    while wanted > 0:
        bodies = await store.results(job_id, place.offset + len(news) - known, wanted + known)
        if known and (not bodies or api.JobResult.FromString(bodies[0]).execution_id != place.execution_id):
            return [], True
        for body in bodies[known:]:
            if size > RESPONSE_BYTES:
                return news, False
            result = api.JobResult.FromString(body)
            result.offset = place.offset + len(news)
            news.append(result)
            size += len(body)
        if len(bodies) < wanted + known:
            break
        # Read as many as the response has room for if all are as large as the first ones. More would be read in vain.
        known, wanted = 0, min(RESULTS_PER_LOOK - len(news), (RESPONSE_BYTES - size) * len(news) // max(1, size))
    return news, False
