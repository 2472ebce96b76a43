"""One job on this router. It runs while the router holds the job's lease."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from cluster.autoscaler.router_report import JobWork
from cluster.errors import (
    InvalidRequestError,
    JobLeaseLostError,
    JobLimitError,
    KeyRevokedError,
    ModelNotFoundError,
    QueueUnavailableError,
)
from cluster.jobs.contract import ItemResult, JobClaim, JobRecord, JobStore
from cluster.jobs.ids import file_of
from cluster.lifecycle import TaskOwner
from cluster.settings import JobsSettings
from cluster.telemetry.tracing.context import read_trace_parent
from penstock.batch.input import ENDPOINTS, Endpoints
from penstock.v1 import jobs_pb2 as api
from penstock.v1.inference_pb2 import GenerateRequest
from penstock.wire import request_class_to_wire
from router.call_origin import CallOrigin, enter_call
from router.jobs.execute import Execute
from router.jobs.lines import name_of, names_ids, read_item, request_of
from router.jobs.messages import error_result, response_result
from router.jobs.plan import BlockPlan, plan
from router.jobs.upload import class_of
from router.jobs.verdict import Again, judge
from router.status import to_rpc_status

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

RENEWALS_PER_LEASE = 3
_LARGE = 32 << 10
"""Bytes of a result that take a good part of a millisecond to write as a line."""
STORE_RETRY_S = 0.5
"""Pause before the next call after Redis did not answer."""


class _StoppedError(Exception):
    """End of an item without a result, because the job is given back."""


@dataclass(frozen=True, slots=True)
class RunTools:
    """Parts that all jobs of one pool on a router share."""

    store: JobStore
    execute: Execute
    settings: JobsSettings
    capacity: Callable[[], int]
    """Sequences that the pool's replicas run together. More items than that would only wait."""
    on_item: Callable[[bool], None] = lambda _failed: None
    """Called for every stored result with whether the item failed."""
    line_bytes: Callable[[JobRecord, bytes], int] = lambda _record, _result: 0
    """Function that returns the bytes of a result's line in a file, for jobs on a file."""
    endpoints: Endpoints = field(default_factory=lambda: ENDPOINTS)
    """Readers of lines, for jobs on a file."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    wall_s: Callable[[], float] = time.time
    """Seconds since the epoch, as on the store's clock."""


class JobRun:
    """Run of one job. It keeps some items in flight until the job ends, its lease is lost, or `stop` is called.

    Its progress is in the store alone. Each pass asks the store what is to do, and the job has ended when a pass finds
    nothing. So results that Redis lost in a crash are made again.
    """

    def __init__(self, claim: JobClaim, tools: RunTools) -> None:
        self._claim = claim
        self._tools = tools
        self._store = tools.store
        self._record = claim.record
        """The job as the store last reported it."""
        self._job_id = claim.record.job_id
        self._header = api.JobHeader.FromString(claim.record.header)
        submitted = read_trace_parent(self._header.trace_parent)
        self._origin = CallOrigin("job", submitted_by="" if submitted is None else submitted.name)
        self._owner = TaskOwner(f"job.{self._job_id}")
        self._items: set[asyncio.Task[None]] = set()
        self._resting: set[asyncio.Task[Any]] = set()
        """Items that were refused and wait for their next try."""
        self._executing: set[asyncio.Task[Any]] = set()
        """Items that wait in line or run."""
        self._stopping = False
        self._revoked = False
        """Whether the job ends because its key was revoked."""
        self._lost = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Number of items that wait or run."""
        return len(self._items)

    @property
    def api_key(self) -> str:
        """Public id of the key that submitted the job; empty for none."""
        return self._header.api_key

    @property
    def created_ms(self) -> int:
        """Time of its submission, milliseconds since the Unix epoch."""
        return self._record.created_ms

    def work(self) -> JobWork:
        """Return what is left of the job. Safe to call from another thread."""
        record = self._record
        usage, results = record.usage, max(1, record.results)
        return JobWork(
            class_of(self._header),
            items=max(0, record.items - record.results),
            in_flight=len(self._items),
            left_s=max(0.0, record.due_ms / 1000 - self._tools.wall_s()),
            prompt_tokens=usage.prompt_tokens / results,
            cached_tokens=usage.cached_tokens / results,
            output_tokens=usage.output_tokens / results,
        )

    def stop(self) -> None:
        """Start no more items. `run` returns when the items in flight have ended."""
        self._stopping = True
        for task in list(self._resting):
            task.cancel()

    def revoke(self) -> None:
        """End the job, because its key was revoked. Items that run get this as their error."""
        self._revoked = True
        _LOG.warning("job.revoked", extra={"job": self._job_id, "key": self.api_key})
        for task in (*self._resting, *self._executing):
            task.cancel()

    async def run(self) -> None:
        """Run the job. When it returns nothing of it is in flight here, and the lease is given back."""
        self._owner.spawn(self._keep_lease(), "lease")
        work = self._owner.spawn(self._passes(), "passes")
        lost = self._owner.spawn(self._lost.wait(), "lost")
        try:
            await asyncio.wait((work, lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._owner.close()
            try:
                await self._store.release(self._claim)
            except QueueUnavailableError:
                _LOG.warning("job.lease_left_to_expire", extra={"job": self._job_id})

    async def _keep_lease(self) -> None:
        settings = self._tools.settings
        # Not only to keep the lease: this is how a router hears that the job was cancelled.
        period = min(settings.poll_s, settings.lease_s / RENEWALS_PER_LEASE)
        while True:
            await self._tools.sleep(period)
            self._record = await self._insist(lambda: self._store.renew(self._claim))

    async def _passes(self) -> None:
        first = True
        while not self._stopping:
            backlog = await self._insist(lambda: self._store.backlog(self._job_id))
            blocks = list(plan(backlog))
            if not blocks:
                return
            if not first:
                # Redis lost results. Or there is a bug, and then the pause keeps the loop from spinning.
                await self._tools.sleep(STORE_RETRY_S)
            first = False
            for block in blocks:
                await self._feed(block)
                if self._revoked:
                    break
            while self._items:
                await asyncio.wait(self._items)
            if self._revoked:
                # Some items tell why. Nothing of the others runs.
                await self._insist(lambda: self._store.cancel(self._job_id))
                return

    async def _feed(self, block: BlockPlan) -> None:
        bodies: list[bytes] = []
        for index in block.items:
            await self._room()
            if self._stopping:
                return
            if not bodies:
                bodies = await self._insist(lambda: self._store.block(self._job_id, block.number))
                if not bodies:
                    # The job has ended meanwhile, or lost its bodies. The next renewal of the lease finds that out.
                    await self._tools.sleep(STORE_RETRY_S)
                    return
            task = self._owner.spawn(self._item(index, bodies[index - block.first]), "item")
            self._items.add(task)
            task.add_done_callback(self._items.discard)

    async def _room(self) -> None:
        while len(self._items) >= max(1, min(self._tools.settings.in_flight, self._tools.capacity())):
            # Look again after a while, because the capacity may have grown.
            await asyncio.wait(self._items, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)

    # --- one item -----------------------------------------------------------------------------------------------------

    async def _item(self, index: int, body: bytes) -> None:
        try:
            item, repeated = read_item(self._job_id, body, self._tools.endpoints)
            asked = request_of(item)
            asked.model = self._header.model
            owner = asked if isinstance(asked, GenerateRequest) else asked.options
            owner.request_class = request_class_to_wire(class_of(self._header))
            unreadable = None
        except InvalidRequestError as error:
            item, repeated, unreadable = api.JobItem(custom_id=name_of(body)), "", to_rpc_status(error)
        try:
            failed = error_result(index, item, unreadable) if unreadable else None
            result = failed or await self._result(index, item, repeated)
            try:
                stored = await self._put(index, result)
            except JobLimitError as error:
                # Its usage stays counted.
                result = replace(error_result(index, item, to_rpc_status(error)), usage=result.usage)
                stored = await self._put(index, result)
        except _StoppedError:
            return
        if stored:
            self._tools.on_item(result.failed)

    async def _put(self, index: int, result: ItemResult) -> bool:
        if file_of(self._job_id):
            measure, body = self._tools.line_bytes, result.body
            # In a thread, because the event loop has streams to serve.
            measured = asyncio.to_thread(measure, self._record, body) if len(body) > _LARGE else None
            size = measure(self._record, body) if measured is None else await measured
            result = replace(result, line_bytes=size)
        return await self._insist(lambda: self._store.store(self._claim, index, result))

    async def _result(self, index: int, item: api.JobItem, repeated: str) -> ItemResult:
        while True:
            if self._revoked:
                return error_result(index, item, to_rpc_status(KeyRevokedError(self.api_key)))
            try:
                enter_call(self._origin)
                with self._among(self._executing):
                    answer = await self._tools.execute(self._claim.record.tenant, request_of(item))
                return response_result(index, item, answer, repeated)
            except asyncio.CancelledError:
                self._go_on_if_revoked()
                continue
            except Exception as error:
                if self._stopping and isinstance(error, ModelNotFoundError):
                    # Its pool began to end meanwhile. The item runs when it comes back.
                    raise _StoppedError from error
                status = to_rpc_status(error)
            verdict = judge(status, names_ids=names_ids(item))
            if not isinstance(verdict, Again):
                return error_result(index, item, status)
            if self._stopping:
                raise _StoppedError
            if verdict.counted and await self._count_failure(index) >= self._tools.settings.max_attempts:
                return error_result(index, item, status)
            # Spread the next tries: all items in flight may have been refused in the same moment.
            await self._rest(verdict.after_s * random.uniform(1.0, 1.25))  # noqa: S311 - no secret

    async def _count_failure(self, index: int) -> int:
        # A name, because Redis may have counted it without an answer.
        execution = secrets.token_hex(8)
        failures = await self._insist(lambda: self._store.count_failure(self._claim, index, execution))
        _LOG.warning("job.item_failed", extra={"job": self._job_id, "item": index, "failures": failures})
        return failures

    async def _rest(self, seconds: float) -> None:
        try:
            with self._among(self._resting):
                await self._tools.sleep(seconds)
        except asyncio.CancelledError:
            self._go_on_if_revoked()

    @contextmanager
    def _among(self, tasks: set[asyncio.Task[Any]]) -> Iterator[None]:
        """Count the item whose task runs among others."""
        if (task := asyncio.current_task()) is None:
            yield
            return
        tasks.add(task)
        try:
            yield
        finally:
            tasks.discard(task)

    def _go_on_if_revoked(self) -> None:
        """Go on after a cancellation that is that of the key; raise any other again."""
        task = asyncio.current_task()
        if not self._revoked or task is None or task.uncancel():
            raise asyncio.CancelledError

    async def _insist(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Call the store until it answers. When the lease is lost it never returns, and the whole run ends."""
        while True:
            try:
                return await call()
            except QueueUnavailableError:
                await self._tools.sleep(STORE_RETRY_S)
            except JobLeaseLostError:
                _LOG.info("job.left", extra={"job": self._job_id})
                self._lost.set()
                await asyncio.Event().wait()
