"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

from penstock.client import calls
from penstock.client.admin.aio import AsyncAdminCaller
from penstock.client.aio_stream import AsyncStream
from penstock.client.calls import Asked
from penstock.client.connection import DEFAULT_TARGET, Access, Connection, MetadataHook, Tls
from penstock.client.credentials import ApiKey
from penstock.client.embeddings.aio import AsyncEmbeddingCaller
from penstock.client.gather import Gathering
from penstock.client.retry import RetryPolicy
from penstock.client.watching import WatchState
from penstock.models import RequestClass
from penstock.values.chat import ChatFields
from penstock.values.errors import BrokenCallError, PenstockClientError
from penstock.values.jobs import EmbedItem, Job, JobItem, JobPage, JobUpdate, Upload, chunks_of
from penstock.values.requests import GenerateFields, GenerateOptions, Prompt, ResumePoint
from penstock.values.results import Completion, ModelDescription, TokenCount
from penstock.values.sampling import Sampling


class AsyncClient(AsyncAdminCaller, AsyncEmbeddingCaller):
    """Client for one event loop. Connects at the first call; end with `close` or `async with`.

    Every method raises PenstockClientError or a subclass, whose `reason` is a stable word such as QUEUE_FULL. Calls are
    tried again only when nothing was delivered and the cluster says that a retry is safe.
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
            ValueError: there is no target, one is not host:port, or the key can't be sent, or would travel in the clear
                to another machine.
        """
        access = Access(tls, api_key, allow_plaintext_key, metadata)
        super().__init__(Connection.build(targets, access, timeout, retry, channel_options))

    async def close(self) -> None:
        """End running calls with CancelledError and close the connections. May be called twice."""
        await self._close()

    # --- generations --------------------------------------------------------------------------------------------------

    async def generate(
        self,
        model: str,
        prompt: Prompt,
        sampling: Sampling | Mapping[str, Any] | None = None,
        options: GenerateOptions | None = None,
        *,
        timeout: float | None = None,
        **parameters: Unpack[GenerateFields],
    ) -> Completion:
        """Generate and return everything at the end. A generation whose router fails continues at another one.

        Args:
            model: as `list_models` names it.
            prompt: text, messages or token ids. A message may be a dictionary: {"role": "user", "content": "Hi"}.
            sampling: how tokens are drawn: Sampling, or a dictionary of its fields.
            options: class, queue timeout, idempotency key, adapter, session, and those of `ChatOptions` of the request.
            timeout: seconds for the whole call, retries included; default: the client's.
            **parameters: sampling parameters and options of a conversation by name, such as max_tokens=64 or
                tools=[...]; they win over `sampling` and `options`.

        Raises:
            InvalidArgumentError: fields are wrong (INVALID_REQUEST); `violations` names each.
            NotFoundError: the cluster does not serve the model (MODEL_NOT_FOUND).
            QueueFullError: the queue stayed full (QUEUE_FULL), or the request could not be done in time (NOT_IN_TIME).
            QuotaExceededError: the tenant's quota stayed used up (QUOTA_EXCEEDED).
            DeadlineExceededError: the timeout (DEADLINE) or the queue timeout (QUEUE_TIMEOUT) passed.
            UnavailableError: no router answered (UNREACHABLE), or the pool has no replica (NO_REPLICA).
            GenerationFailedError: the engine failed and the request could not continue (GENERATION_FAILED).
            TypeError: there is no parameter of a name, or a value has another type.
        """
        call = calls.generate(Asked(model, prompt, sampling, options, parameters))
        attempts = self._connection.attempts(timeout)
        try:
            return await self._attempt(call, attempts)
        except BrokenCallError as broken:
            stream = self._follow(calls.rest_of(call, broken.resume_token), attempts)
        whole = Gathering()
        async for event in stream:
            whole.add(event)
        return whole.completion(attempts.timeout)

    def stream(
        self,
        model: str,
        prompt: Prompt,
        sampling: Sampling | Mapping[str, Any] | None = None,
        options: GenerateOptions | None = None,
        *,
        flush_interval: float | None = None,
        resume: ResumePoint | None = None,
        timeout: float | None = None,
        **parameters: Unpack[GenerateFields],
    ) -> AsyncStream:
        """Generate and return events as they come. The call begins with the first event that is read; leaving the loop,
        as `break` does, cancels it.

        Args:
            model: as `list_models` names it.
            prompt: text, messages or token ids; on resume the same as before. A message may be a dictionary:
                {"role": "user", "content": "Hi"}.
            sampling: how tokens are drawn: Sampling, or a dictionary of its fields; on resume the same as before.
            options: class, queue timeout, idempotency key, adapter, session, and those of `ChatOptions`; on resume the
                same as before.
            flush_interval: seconds over which deltas are merged after a choice's first token; 0 sends each at once.
                None leaves it to the router, which merges for up to 100 ms while it serves many streams.
            resume: position of a stream to continue instead of starting one; from `AsyncStream.resume_point`.
            timeout: seconds for the whole stream; default: the client's.
            **parameters: sampling parameters and options of a conversation by name, such as max_tokens=64 or
                tools=[...]; they win over `sampling` and `options`.

        Raises:
            TypeError: there is no parameter of a name, or a value has another type. Reading the stream raises the
                errors of `generate`, and TakenOverError (TAKEN_OVER) when another call continues the request.
        """
        asked = Asked(model, prompt, sampling, options, parameters)
        request = calls.stream_request(asked, flush_interval, resume)
        return self._follow(request, self._connection.attempts(timeout))

    async def cancel(self, *, request_id: str = "", idempotency_key: str = "", timeout: float | None = None) -> str:
        """Cancel a request by exactly one of its names; return the cluster's id of the request.

        Args:
            request_id: the cluster's id, from `AsyncStream.request_id`.
            idempotency_key: the caller's own name, from GenerateOptions.
            timeout: seconds; default: the client's.

        Raises:
            NotFoundError: no live request of the tenant has the name (REQUEST_NOT_FOUND).
            ValueError: both names are given, or none.
        """
        return await self._run(calls.cancel(request_id, idempotency_key), timeout)

    # --- models -------------------------------------------------------------------------------------------------------

    async def list_models(self, *, timeout: float | None = None) -> tuple[ModelDescription, ...]:
        """Return the models that the cluster serves, ordered by name. `timeout` is in seconds."""
        return await self._run(calls.list_models(), timeout)

    async def get_model(self, model: str, *, timeout: float | None = None) -> ModelDescription:
        """Return one model. `timeout` is in seconds.

        Raises:
            NotFoundError: the cluster does not serve it (MODEL_NOT_FOUND).
        """
        return await self._run(calls.get_model(model), timeout)

    async def count_tokens(
        self, model: str, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[ChatFields]
    ) -> TokenCount:
        """Tokenize a prompt as `generate` would.

        Args:
            model: as `list_models` names it.
            prompt: text, messages or token ids.
            timeout: seconds; default: the client's.
            **options: options of a conversation by name, such as tools=[...].

        Raises:
            NotFoundError: the cluster does not serve the model (MODEL_NOT_FOUND).
            InvalidArgumentError: the prompt can't be rendered (INVALID_REQUEST).
            TypeError: there is no option of a name, or a value has another type.
        """
        return await self._run(calls.count_tokens(model, prompt, options), timeout)

    async def detokenize(self, model: str, token_ids: Sequence[int], *, timeout: float | None = None) -> str:
        """Return the text of tokens, special tokens included.

        Args:
            model: as `list_models` names it.
            token_ids: ids of the model's vocabulary.
            timeout: seconds; default: the client's.

        Raises:
            NotFoundError: the cluster does not serve the model (MODEL_NOT_FOUND).
            InvalidArgumentError: an id is outside the vocabulary (INVALID_REQUEST).
        """
        return await self._run(calls.detokenize(model, token_ids), timeout)

    # --- jobs ---------------------------------------------------------------------------------------------------------

    async def submit_job(
        self,
        model: str,
        items: Iterable[JobItem | EmbedItem],
        *,
        request_class: RequestClass = RequestClass.BATCH,
        idempotency_key: str = "",
        run_within: float | None = None,
        on_sent: Callable[[int], None] | None = None,
        timeout: float | None = None,
    ) -> Job:
        """Store a job of generations, or requests for vectors, that run in the background; return once it is queued.

        Args:
            model: as `list_models` names it.
            items: generations with names that are unique in the job.
            request_class: urgency of all items.
            idempotency_key: the same key with the same items gives the same job; default: a random one.
            run_within: seconds after which the job expires; default: the cluster's bound.
            on_sent: called with the number of items sent; a repeated attempt begins again at 0. May be called on
                another thread.
            timeout: seconds for the upload; default: the client's.

        Raises:
            InvalidArgumentError: an item is wrong (INVALID_REQUEST); `violations` names item and field.
            AlreadyExistsError: the key belongs to a job with other items (JOB_KEY_REUSED).
            PenstockClientError: a bound on stored jobs is reached (JOB_LIMIT).
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
        """Return one job of the caller's tenant. `timeout` is in seconds.

        Raises:
            NotFoundError: the tenant has no job of this id (JOB_NOT_FOUND).
        """
        return await self._run(calls.get_job(job_id), timeout)

    async def list_jobs(self, *, page_size: int = 50, page_token: str = "", timeout: float | None = None) -> JobPage:
        """List jobs, newest first.

        Args:
            page_size: most jobs to return.
            page_token: `next_page_token` of the page before; default: the first page.
            timeout: seconds; default: the client's.
        """
        return await self._run(calls.list_jobs(page_size, page_token), timeout)

    async def cancel_job(self, job_id: str, *, timeout: float | None = None) -> Job:
        """End a job; results that exist are kept. `timeout` is in seconds.

        Raises:
            NotFoundError: the tenant has no job of this id (JOB_NOT_FOUND).
        """
        return await self._run(calls.cancel_job(job_id), timeout)

    async def delete_job(self, job_id: str, *, timeout: float | None = None) -> None:
        """Delete a job with its bodies and results; a running job is ended first. `timeout` is in seconds.

        Raises:
            NotFoundError: the tenant has no job of this id (JOB_NOT_FOUND).
        """
        await self._run(calls.delete_job(job_id), timeout)

    def watch_job(
        self, job_id: str, *, resume_token: bytes = b"", progress_only: bool = False, patience: float = 60.0
    ) -> AsyncIterator[JobUpdate]:
        """Yield a job's results in the order of their completion, and its progress, until it has ended.

        A connection that breaks is opened again, at any router; each result comes once.

        Args:
            job_id: from `submit_job`.
            resume_token: token of the update after which to continue; default: from the first result.
            progress_only: whether to leave the results out.
            patience: seconds of failed connections after which UnavailableError is raised.

        Raises:
            NotFoundError: the tenant has no job of this id (JOB_NOT_FOUND).
        """
        on_wait = self._connection.retry.on_wait
        return self._watch(WatchState(job_id, resume_token, progress_only, patience, on_wait=on_wait))
