"""The client for asyncio."""

from __future__ import annotations

import asyncio
import datetime
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import grpc

from penstock.client import calls
from penstock.client.aio_stream import AsyncStream, task_is_cancelled
from penstock.client.calls import Result, UnaryCall
from penstock.client.connection import DEFAULT_TARGET, Access, Connection, MetadataHook, Stubs, Tls
from penstock.client.credentials import ApiKey
from penstock.client.gather import Gathering
from penstock.client.retry import Attempts, RetryPolicy
from penstock.client.stream_state import StreamState
from penstock.client.watching import WatchState
from penstock.models import RequestClass
from penstock.v1 import inference_pb2
from penstock.values.decisions import DecisionList
from penstock.values.errors import (
    BrokenCallError,
    CancelledError,
    PenstockClientError,
    from_rpc_error,
    resume_token_of,
)
from penstock.values.jobs import Job, JobItem, JobPage, JobUpdate, Upload, chunks_of
from penstock.values.requests import GenerateOptions, Prompt, ResumePoint, Sampling
from penstock.values.results import ClusterStatus, Completion, ModelDescription, TokenCount, UsageReport
from penstock.values.slo import OperatingPoint


class AsyncClient:
    """Client for one event loop. Connects at the first call; end with `close` or `async with`.

    Every method raises PenstockClientError or a subclass. Calls are tried again only when nothing was delivered and the
    cluster says that a retry is safe.
    """

    def __init__(
        self,
        targets: str | Sequence[str] = DEFAULT_TARGET,
        *,
        tls: Tls | None = None,
        api_key: ApiKey | None = None,
        allow_plaintext_key: bool = False,
        metadata: MetadataHook | None = None,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        channel_options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        """Prepare a client.

        Args:
            targets: one or more routers, host:port; attempts use them in turn.
            tls: None connects in the clear.
            api_key: the key, or a function that returns the current one; called before every attempt.
            allow_plaintext_key: whether the key may travel in the clear to other machines.
            metadata: function that returns the metadata to send; called before every attempt.
            timeout: seconds for a whole call, retries included, unless the call gives its own; None is no limit.
            retry: bounds of retries.
            channel_options: added to CHANNEL_OPTIONS, over which they win.

        Raises:
            ValueError: there is no target, or the key can't be sent, or would travel in the clear to another machine.
        """
        access = Access(tls, api_key, allow_plaintext_key, metadata)
        self._connection = Connection.build(targets, access, timeout, retry, channel_options)
        self._rotation = self._connection.rotation()
        self._channels: list[grpc.aio.Channel] = []
        self._stubs: list[Stubs] = []
        # Closing a channel does not wake the readers of its streams, so the client ends every call itself.
        self._running: set[Any] = set()
        self._streams: weakref.WeakSet[AsyncStream] = weakref.WeakSet()
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End running calls with CancelledError and close the connections. May be called twice."""
        self._closed.set()
        for running in (*self._running, *self._streams):
            running.cancel()
        channels, self._channels, self._stubs = self._channels, [], []
        for channel in channels:
            await channel.close(None)

    async def generate(
        self,
        model: str,
        prompt: Prompt,
        sampling: Sampling | None = None,
        options: GenerateOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> Completion:
        """Generate and return everything at the end. A generation whose router fails continues at another one."""
        call = calls.generate(model, prompt, sampling, options)
        attempts = self._connection.attempts(timeout)
        try:
            return await self._attempt(call, attempts)
        except BrokenCallError as broken:
            stream = self._follow(calls.rest_of(call, broken.resume_token), attempts)
        whole = Gathering()
        async for event in stream:
            whole.add(event)
        return whole.completion()

    def stream(
        self,
        model: str,
        prompt: Prompt,
        sampling: Sampling | None = None,
        options: GenerateOptions | None = None,
        *,
        flush_interval: float | None = None,
        resume: ResumePoint | None = None,
        timeout: float | None = None,
    ) -> AsyncStream:
        """Generate and return events as they come; the call begins with the first `async for` step.

        Args:
            model: as `list_models` names it.
            prompt: text, messages or token ids; on resume the same as before.
            sampling: on resume the same as before.
            options: on resume the same as before.
            flush_interval: seconds over which deltas are merged after a choice's first token; 0 sends each at once.
                None leaves it to the router, which merges for up to 100 ms while it serves many streams.
            resume: position of a stream to continue instead of starting one; from `AsyncStream.resume_point`.
            timeout: seconds for the whole stream.
        """
        request = calls.stream_request(model, prompt, sampling, options, flush_interval, resume)
        return self._follow(request, self._connection.attempts(timeout))

    async def cancel(self, *, request_id: str = "", idempotency_key: str = "", timeout: float | None = None) -> str:
        """Cancel a request by exactly one of its names; return the cluster's id of the request."""
        return await self._run(calls.cancel(request_id, idempotency_key), timeout)

    async def list_models(self, *, timeout: float | None = None) -> tuple[ModelDescription, ...]:
        """Return the models that the cluster serves, ordered by name."""
        return await self._run(calls.list_models(), timeout)

    async def get_model(self, model: str, *, timeout: float | None = None) -> ModelDescription:
        """Return one model; NotFoundError when the cluster does not serve it."""
        return await self._run(calls.get_model(model), timeout)

    async def count_tokens(self, model: str, prompt: Prompt, *, timeout: float | None = None) -> TokenCount:
        """Tokenize a prompt as `generate` would."""
        return await self._run(calls.count_tokens(model, prompt), timeout)

    async def cluster_status(self, *, timeout: float | None = None) -> ClusterStatus:
        """Return the state of the cluster as one router sees it."""
        return await self._run(calls.cluster_status(), timeout)

    async def usage(
        self,
        *,
        tenant: str = "",
        all_tenants: bool = False,
        pool: str = "",
        first_day: datetime.date | None = None,
        last_day: datetime.date | None = None,
        timeout: float | None = None,
    ) -> UsageReport:
        """Return the usage of the caller's tenant. Operators may ask for another tenant or all of them.

        Args:
            tenant: default: the caller's own.
            all_tenants: whether to return all tenants.
            pool: default: all.
            first_day: UTC; default: as far back as the ledger is kept.
            last_day: UTC, itself included; default: today.
            timeout: seconds.

        Raises:
            ValueError: both a tenant and all tenants are asked for.
        """
        return await self._run(calls.usage(tenant, all_tenants, pool, first_day, last_day), timeout)

    async def decisions(self, pool: str = "", *, limit: int = 20, timeout: float | None = None) -> DecisionList:
        """Return the autoscaler's last decisions and their reasons, newest first. For operators.

        Args:
            pool: default: the only one.
            limit: 1 to 1000.
            timeout: seconds.
        """
        return await self._run(calls.list_decisions(pool, limit), timeout)

    async def set_operating_point(
        self, pool: str, point: OperatingPoint | None, *, timeout: float | None = None
    ) -> OperatingPoint:
        """Change a pool's operating point and return the one in force. For admins.

        Args:
            pool: name of the pool.
            point: the whole new operating point; None returns to the settings.
            timeout: seconds.
        """
        return await self._run(calls.set_operating_point(pool, point), timeout)

    async def submit_job(
        self,
        model: str,
        items: Iterable[JobItem],
        *,
        request_class: RequestClass = RequestClass.BATCH,
        idempotency_key: str = "",
        run_within: float | None = None,
        on_sent: Callable[[int], None] | None = None,
        timeout: float | None = None,
    ) -> Job:
        """Store a job of generations that run in the background; return once it is queued.

        Args:
            model: as `list_models` names it.
            items: generations with names that are unique in the job.
            request_class: urgency of all items.
            idempotency_key: the same key with the same items gives the same job; default: a random one.
            run_within: seconds after which the job expires; default: the cluster's bound.
            on_sent: called with the number of items sent; a repeated attempt begins again at 0. May be called on
                another thread.
            timeout: seconds for the upload.
        """
        chunks = []
        for chunk in chunks_of(items):
            chunks.append(chunk)
            # Converting a large job takes a second, in which other tasks must run.
            await asyncio.sleep(0)
        upload = Upload(
            model,
            chunks,
            request_class=request_class,
            idempotency_key=idempotency_key,
            run_within=run_within,
            on_sent=on_sent,
        )
        try:
            return await self._run(calls.submit_job(upload), timeout)
        except PenstockClientError:
            if upload.failure is not None:
                raise upload.failure from None
            raise

    async def get_job(self, job_id: str, *, timeout: float | None = None) -> Job:
        """Return one job of the caller's tenant."""
        return await self._run(calls.get_job(job_id), timeout)

    async def list_jobs(self, *, page_size: int = 50, page_token: str = "", timeout: float | None = None) -> JobPage:
        """List jobs, newest first."""
        return await self._run(calls.list_jobs(page_size, page_token), timeout)

    async def cancel_job(self, job_id: str, *, timeout: float | None = None) -> Job:
        """End a job; results that exist are kept."""
        return await self._run(calls.cancel_job(job_id), timeout)

    async def delete_job(self, job_id: str, *, timeout: float | None = None) -> None:
        """Delete a job with its bodies and results; a running job is ended first."""
        await self._run(calls.delete_job(job_id), timeout)

    async def watch_job(
        self, job_id: str, *, resume_token: bytes = b"", progress_only: bool = False, patience: float = 60.0
    ) -> AsyncIterator[JobUpdate]:
        """Yield a job's results in the order of their completion, and its progress, until it has ended.

        A connection that breaks is opened again, at any router; each result comes once.

        Args:
            job_id: from `submit_job`.
            resume_token: token of the update after which to continue; default: from the first result.
            progress_only: whether to leave the results out.
            patience: seconds of failed connections after which UnavailableError is raised.
        """
        on_wait = self._connection.retry.on_wait
        state = WatchState(job_id, resume_token, progress_only, patience, on_wait=on_wait)
        while not state.ended:
            call = self._next().jobs.WatchJob(state.request(), metadata=self._connection.call_metadata())
            self._running.add(call)
            try:
                async for message in call:
                    yield state.accept(message)
                state.closed()
                return
            except grpc.RpcError as error:
                failure = from_rpc_error(error)
                wait = state.failed(failure)
                if wait is None:
                    raise failure from error
            except asyncio.CancelledError:
                if task_is_cancelled():
                    raise
                raise CancelledError("the watch was cancelled here", grpc.StatusCode.CANCELLED) from None
            finally:
                self._running.discard(call)
                call.cancel()
            await self._pause(wait)

    def _follow(self, request: inference_pb2.StreamGenerateRequest, attempts: Attempts) -> AsyncStream:
        stream = AsyncStream(self._open_stream, StreamState(request, attempts))
        self._streams.add(stream)
        return stream

    async def _run(self, call: UnaryCall[Result], timeout: float | None) -> Result:
        return await self._attempt(call, self._connection.attempts(timeout))

    async def _attempt(self, call: UnaryCall[Result], attempts: Attempts) -> Result:
        while True:
            running = call.method(self._next())(
                call.request, timeout=attempts.time_left(), metadata=self._connection.call_metadata()
            )
            self._running.add(running)
            try:
                return call.convert(await running)
            except grpc.RpcError as error:
                failure = from_rpc_error(error)
                if token := resume_token_of(error, failure):
                    # It may still be running: to ask again would run it twice.
                    raise BrokenCallError(token) from error
                wait = attempts.wait_after(failure)
                if wait is None:
                    raise failure from error
            except asyncio.CancelledError:
                if task_is_cancelled():
                    raise
                raise CancelledError("the call was cancelled here", grpc.StatusCode.CANCELLED) from None
            finally:
                self._running.discard(running)
                running.cancel()
            await self._pause(wait)

    def _open_stream(self, request: inference_pb2.StreamGenerateRequest, timeout: float | None, *, again: bool) -> Any:
        if again:
            self._check_open()
        return self._next().inference.StreamGenerate(
            request, timeout=timeout, metadata=self._connection.call_metadata()
        )

    async def _pause(self, seconds: float) -> None:
        """Wait for the next attempt; a close of the client ends the wait.

        Raises:
            CancelledError: the client was closed.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        self._check_open()

    def _check_open(self) -> None:
        """Raise CancelledError if the client was closed meanwhile."""
        if self._closed.is_set():
            raise CancelledError("the client was closed", grpc.StatusCode.CANCELLED)

    def _next(self) -> Stubs:
        if self._closed.is_set():
            raise RuntimeError("the client is closed")
        if not self._channels:
            # Not in __init__, because a channel belongs to the loop that runs when it is made.
            self._channels = [self._channel(target) for target in self._connection.targets]
            self._stubs = [Stubs(channel) for channel in self._channels]
        return self._stubs[next(self._rotation)]

    def _channel(self, target: str) -> grpc.aio.Channel:
        if self._connection.tls is None:
            return grpc.aio.insecure_channel(target, options=self._connection.options)
        return grpc.aio.secure_channel(target, self._connection.tls.credentials(), options=self._connection.options)
