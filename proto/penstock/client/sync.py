"""The client for threads."""

from __future__ import annotations

import datetime
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import grpc

from penstock.client import calls
from penstock.client.calls import Result, UnaryCall
from penstock.client.connection import DEFAULT_TARGET, Access, Connection, MetadataHook, Stubs, Tls
from penstock.client.credentials import ApiKey
from penstock.client.gather import Gathering
from penstock.client.retry import Attempts, RetryPolicy
from penstock.client.stream_state import StreamState
from penstock.client.sync_stream import Stream
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


class Client:
    """Client for threads; may be used from any of them. Connects at the first call; end with `close` or `with`.

    Methods, arguments and errors are those of AsyncClient.
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
        """Prepare a client. The arguments are those of AsyncClient."""
        access = Access(tls, api_key, allow_plaintext_key, metadata)
        self._connection = Connection.build(targets, access, timeout, retry, channel_options)
        self._rotation = self._connection.rotation()
        self._channels = [self._channel(target) for target in self._connection.targets]
        self._stubs = [Stubs(channel) for channel in self._channels]
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._lock = threading.RLock()
        """Lock held while streams are added or listed."""
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End running calls with CancelledError and close the connections. May be called twice."""
        self._closed.set()
        for channel in self._channels:
            channel.close()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            # The channels do not end a stream that waits for its next attempt.
            stream.cancel()

    def generate(
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
            return self._attempt(call, attempts)
        except BrokenCallError as broken:
            stream = self._follow(calls.rest_of(call, broken.resume_token), attempts)
        whole = Gathering()
        for event in stream:
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
    ) -> Stream:
        """Generate and return events as they come. The arguments are those of AsyncClient.stream."""
        request = calls.stream_request(model, prompt, sampling, options, flush_interval, resume)
        return self._follow(request, self._connection.attempts(timeout))

    def cancel(self, *, request_id: str = "", idempotency_key: str = "", timeout: float | None = None) -> str:
        """Cancel a request by exactly one of its names; return the cluster's id of the request."""
        return self._run(calls.cancel(request_id, idempotency_key), timeout)

    def list_models(self, *, timeout: float | None = None) -> tuple[ModelDescription, ...]:
        """Return the models that the cluster serves, ordered by name."""
        return self._run(calls.list_models(), timeout)

    def get_model(self, model: str, *, timeout: float | None = None) -> ModelDescription:
        """Return one model; NotFoundError when the cluster does not serve it."""
        return self._run(calls.get_model(model), timeout)

    def count_tokens(self, model: str, prompt: Prompt, *, timeout: float | None = None) -> TokenCount:
        """Tokenize a prompt as `generate` would."""
        return self._run(calls.count_tokens(model, prompt), timeout)

    def cluster_status(self, *, timeout: float | None = None) -> ClusterStatus:
        """Return the state of the cluster as one router sees it."""
        return self._run(calls.cluster_status(), timeout)

    def usage(
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
        return self._run(calls.usage(tenant, all_tenants, pool, first_day, last_day), timeout)

    def decisions(self, pool: str = "", *, limit: int = 20, timeout: float | None = None) -> DecisionList:
        """Return the autoscaler's last decisions and their reasons, newest first. For operators.

        Args:
            pool: default: the only one.
            limit: 1 to 1000.
            timeout: seconds.
        """
        return self._run(calls.list_decisions(pool, limit), timeout)

    def set_operating_point(
        self, pool: str, point: OperatingPoint | None, *, timeout: float | None = None
    ) -> OperatingPoint:
        """Change a pool's operating point and return the one in force. For admins.

        Args:
            pool: name of the pool.
            point: the whole new operating point; None returns to the settings.
            timeout: seconds.
        """
        return self._run(calls.set_operating_point(pool, point), timeout)

    def submit_job(
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
        """Store a job of generations that run in the background, as AsyncClient.submit_job does."""
        upload = Upload(
            model,
            tuple(chunks_of(items)),
            request_class=request_class,
            idempotency_key=idempotency_key,
            run_within=run_within,
            on_sent=on_sent,
        )
        try:
            return self._run(calls.submit_job(upload), timeout)
        except PenstockClientError:
            if upload.failure is not None:
                raise upload.failure from None
            raise

    def get_job(self, job_id: str, *, timeout: float | None = None) -> Job:
        """Return one job of the caller's tenant."""
        return self._run(calls.get_job(job_id), timeout)

    def list_jobs(self, *, page_size: int = 50, page_token: str = "", timeout: float | None = None) -> JobPage:
        """List jobs, newest first."""
        return self._run(calls.list_jobs(page_size, page_token), timeout)

    def cancel_job(self, job_id: str, *, timeout: float | None = None) -> Job:
        """End a job; results that exist are kept."""
        return self._run(calls.cancel_job(job_id), timeout)

    def delete_job(self, job_id: str, *, timeout: float | None = None) -> None:
        """Delete a job with its bodies and results; a running job is ended first."""
        self._run(calls.delete_job(job_id), timeout)

    def watch_job(
        self, job_id: str, *, resume_token: bytes = b"", progress_only: bool = False, patience: float = 60.0
    ) -> Iterator[JobUpdate]:
        """Yield a job's results and progress until it has ended, as AsyncClient.watch_job does."""
        on_wait = self._connection.retry.on_wait
        state = WatchState(job_id, resume_token, progress_only, patience, on_wait=on_wait)
        while not state.ended:
            with self._beginning():
                call = self._next().jobs.WatchJob(state.request(), metadata=self._connection.call_metadata())
            try:
                for message in call:
                    yield state.accept(message)
                state.closed()
                return
            except grpc.RpcError as error:
                failure = from_rpc_error(error)
                wait = state.failed(failure)
                if wait is None:
                    raise failure from error
            finally:
                call.cancel()
            self._closed.wait(wait)
            self._check_open()

    def _follow(self, request: inference_pb2.StreamGenerateRequest, attempts: Attempts) -> Stream:
        stream = Stream(self._open_stream, StreamState(request, attempts))
        with self._lock:
            self._streams.add(stream)
        return stream

    def _run(self, call: UnaryCall[Result], timeout: float | None) -> Result:
        return self._attempt(call, self._connection.attempts(timeout))

    def _attempt(self, call: UnaryCall[Result], attempts: Attempts) -> Result:
        while True:
            try:
                with self._beginning():
                    answer = call.method(self._next())(
                        call.request, timeout=attempts.time_left(), metadata=self._connection.call_metadata()
                    )
                return call.convert(answer)
            except grpc.RpcError as error:
                failure = from_rpc_error(error)
                if token := resume_token_of(error, failure):
                    # It may still be running: to ask again would run it twice.
                    raise BrokenCallError(token) from error
                wait = attempts.wait_after(failure)
                if wait is None:
                    raise failure from error
            self._closed.wait(wait)
            self._check_open()

    def _open_stream(self, request: inference_pb2.StreamGenerateRequest, timeout: float | None, *, again: bool) -> Any:
        if again:
            self._check_open()
        with self._beginning():
            return self._next().inference.StreamGenerate(
                request, timeout=timeout, metadata=self._connection.call_metadata()
            )

    @contextmanager
    def _beginning(self) -> Iterator[None]:
        """Raise CancelledError, and not gRPC's ValueError, where another thread closes the channel meanwhile."""
        try:
            yield
        except ValueError:
            self._check_open()
            raise

    def _check_open(self) -> None:
        """Raise CancelledError if the client was closed meanwhile."""
        if self._closed.is_set():
            raise CancelledError("the client was closed", grpc.StatusCode.CANCELLED)

    def _next(self) -> Stubs:
        if self._closed.is_set():
            raise RuntimeError("the client is closed")
        return self._stubs[next(self._rotation)]

    def _channel(self, target: str) -> grpc.Channel:
        if self._connection.tls is None:
            return grpc.insecure_channel(target, options=self._connection.options)
        return grpc.secure_channel(target, self._connection.tls.credentials(), options=self._connection.options)
