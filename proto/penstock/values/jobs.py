"""Durable batches as plain values, and their conversion. All points in time are seconds since the Unix epoch."""

from __future__ import annotations

import enum
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from penstock.models import FieldViolation, RequestClass
from penstock.v1 import embeddings_pb2, jobs_pb2
from penstock.values.chat import ChatOptions, chat_fields
from penstock.values.embeddings import Embeddings, Inputs, PoolingOptions, inputs_to_proto
from penstock.values.fields import below, build, duration_field, unfit
from penstock.values.requests import GenerateOptions, Prompt, class_field, request_to_proto
from penstock.values.results import Completion
from penstock.values.sampling import Sampling
from penstock.wire import request_class_from_wire

CHUNK_ITEMS = 256
CHUNK_BYTES = 512 << 10
"""Bytes. A message of an upload ends at either bound; a single item may be larger."""


class JobState(enum.StrEnum):
    """State of a job."""

    UNKNOWN = "unknown"
    """A state that this version of the client does not know."""
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    """Every item has a result; some may be errors."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"
    """The cluster lost a part of the job; `Job.failure` says which."""

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self in (JobState.SUCCEEDED, JobState.CANCELLED, JobState.EXPIRED, JobState.FAILED)


_STATES = {
    jobs_pb2.JOB_STATE_QUEUED: JobState.QUEUED,
    jobs_pb2.JOB_STATE_RUNNING: JobState.RUNNING,
    jobs_pb2.JOB_STATE_SUCCEEDED: JobState.SUCCEEDED,
    jobs_pb2.JOB_STATE_CANCELLED: JobState.CANCELLED,
    jobs_pb2.JOB_STATE_EXPIRED: JobState.EXPIRED,
    jobs_pb2.JOB_STATE_FAILED: JobState.FAILED,
}


@dataclass(frozen=True, slots=True)
class JobItem(ChatOptions):
    """One generation of a job."""

    custom_id: str
    """The caller's name for it, unique in the job."""
    prompt: Prompt
    sampling: Sampling | Mapping[str, Any] | None = None
    """Sampling parameters, or a dictionary of them."""
    lora_adapter: str = ""
    session_id: str = ""
    """Name of a group of items that share a long prefix; they prefer the same replica."""

    def to_proto(self) -> jobs_pb2.JobItem:
        """Convert to the wire.

        Raises:
            TypeError: the prompt is neither text, nor messages, nor token ids, or a value is of another type.
            ValueError: a number is out of the range of its type on the wire, or text is not Unicode; names the field.
        """
        options = GenerateOptions(
            lora_adapter=self.lora_adapter,
            session_id=self.session_id,
            **chat_fields(self),
        )
        with below("request"):
            request = request_to_proto("", self.prompt, self.sampling, options)
        request.ClearField("request_class")
        return build(jobs_pb2.JobItem, custom_id=self.custom_id, request=request)


@dataclass(frozen=True, slots=True)
class EmbedItem:
    """One request for vectors of a job."""

    custom_id: str
    """The caller's name for it, unique in the job."""
    inputs: Inputs
    """A text, or up to 2,048 texts or token ids."""
    dimensions: int | None = None
    """Numbers of each vector, for models whose vectors can be cut; None for all."""
    normalize: bool | None = None
    """Whether each vector has length 1; None leaves it to the model's files."""
    options: PoolingOptions | None = None
    """Truncation and adapter. Class and queue timeout belong to the job."""

    def to_proto(self) -> jobs_pb2.JobItem:
        """Convert to the wire.

        Raises:
            TypeError: an input is neither text nor token ids, or a value is of another type.
            ValueError: a number is out of the range of its type on the wire, or text is not Unicode; names the field.
        """
        with below("embed"):
            request = build(
                embeddings_pb2.EmbedRequest,
                inputs=inputs_to_proto("inputs", self.inputs),
                dimensions=self.dimensions,
                normalize=self.normalize,
                options=self.options.to_proto() if self.options is not None else None,
            )
        request.options.ClearField("request_class")
        return build(jobs_pb2.JobItem, custom_id=self.custom_id, embed=request)


@dataclass(frozen=True, slots=True)
class JobTotals:
    """Sum of usage over the results of a job."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    gpu_seconds: float
    cost: float
    reasoning_tokens: int = 0
    """Output tokens that were reasoning."""


@dataclass(frozen=True, slots=True)
class Job:
    """Description of a job."""

    job_id: str
    model: str
    state: JobState
    request_class: RequestClass
    idempotency_key: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    due_at: float
    """Time at which an open job expires, and at which a job that has ended is deleted."""
    items: int
    succeeded_items: int
    failed_items: int
    usage: JobTotals
    router_id: str
    """Id of the router that feeds the job; empty when none does."""
    failure: str = ""
    """Reason why the job failed, for people."""
    existed: bool = False
    """Whether `submit_job` found this job under its idempotency key instead of storing a new one. Also after an attempt
    whose answer was lost."""

    @property
    def finished_items(self) -> int:
        """Number of items that have a result."""
        return self.succeeded_items + self.failed_items

    @classmethod
    def from_proto(cls, wire: jobs_pb2.Job, *, existed: bool = False) -> Job:
        usage = wire.usage
        return cls(
            job_id=wire.job_id,
            model=wire.model,
            state=_STATES.get(wire.state, JobState.UNKNOWN),
            request_class=request_class_from_wire(wire.request_class),
            idempotency_key=wire.idempotency_key,
            created_at=_seconds(wire.created_at),
            started_at=_seconds(wire.started_at) if wire.HasField("started_at") else None,
            ended_at=_seconds(wire.ended_at) if wire.HasField("ended_at") else None,
            due_at=_seconds(wire.due_at),
            items=wire.items,
            succeeded_items=wire.succeeded_items,
            failed_items=wire.failed_items,
            usage=JobTotals(
                usage.prompt_tokens,
                usage.output_tokens,
                usage.cached_tokens,
                usage.gpu_seconds,
                usage.cost,
                usage.reasoning_tokens,
            ),
            router_id=wire.router_id,
            failure=wire.failure,
            existed=existed,
        )


@dataclass(frozen=True, slots=True)
class JobItemError:
    """Reason why an item has no output."""

    code: int
    """The google.rpc.Code that a call of Generate would have ended with."""
    reason: str
    """A stable word, such as INVALID_REQUEST."""
    message: str
    violations: tuple[FieldViolation, ...] = ()
    """Fields of the item's request that are wrong; empty where the error is of another kind."""

    @classmethod
    def from_proto(cls, wire: jobs_pb2.JobError) -> JobItemError:
        violations = tuple(FieldViolation(each.field, each.description) for each in wire.fields)
        return cls(wire.code, wire.reason, wire.message, violations)


@dataclass(frozen=True, slots=True)
class JobResult:
    """The one result of an item; exactly one of `completion`, `embeddings` and `error` is set."""

    index: int
    """Index of the item, from 0."""
    custom_id: str
    ended_at: float
    chat: bool
    """Whether the prompt was a conversation."""
    completion: Completion | None
    """The output. Its token ids are empty unless log probabilities were asked for."""
    error: JobItemError | None
    embeddings: Embeddings | None = None
    """Vectors of an item that asks for them."""

    @classmethod
    def from_proto(cls, wire: jobs_pb2.JobResult) -> JobResult:
        return cls(
            index=wire.index,
            custom_id=wire.custom_id,
            ended_at=_seconds(wire.ended_at),
            chat=wire.chat,
            completion=Completion.from_proto(wire.response) if wire.HasField("response") else None,
            error=JobItemError.from_proto(wire.error) if wire.HasField("error") else None,
            embeddings=Embeddings.from_proto(wire.embeddings) if wire.HasField("embeddings") else None,
        )


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """An update on a job."""

    job: Job
    results: tuple[JobResult, ...]
    """New results, in the order of their completion."""
    resume_token: bytes
    """Token with which another watch continues after these results."""
    rewound: bool = False
    """Whether the store lost results in a crash, so that the stream begins again. Results that this watch returned
    before are left out. Results of an earlier watch, whose token this one began with, are not."""


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of the list of jobs."""

    jobs: tuple[Job, ...]
    next_page_token: str
    """Token of the next page; empty on the last page."""

    @classmethod
    def from_proto(cls, wire: jobs_pb2.ListJobsResponse) -> JobPage:
        return cls(tuple(map(Job.from_proto, wire.jobs)), wire.next_page_token)


class Upload:
    """Messages of a submission; may be iterated again for another attempt."""

    def __init__(
        self,
        model: str,
        chunks: Sequence[jobs_pb2.JobItems],
        *,
        request_class: RequestClass,
        idempotency_key: str,
        run_within: float | None,
        on_sent: Callable[[int], None] | None,
    ) -> None:
        """Build the header. Without a key the upload gets a random one, so that a repetition after a lost answer finds
        the same job.

        Args:
            model: model of all items.
            chunks: from `chunks_of`.
            request_class: urgency of all items.
            idempotency_key: the caller's own name for the job; empty for a random one.
            run_within: seconds after which the job expires; None takes the cluster's bound.
            on_sent: called with the number of items sent so far.

        Raises:
            ValueError: a number is out of the range of its type on the wire, or text is not Unicode; names the field.
            TypeError: a value is of another type; names the field.
        """
        header = build(
            jobs_pb2.JobHeader,
            "header.",
            model=model,
            request_class=class_field(request_class),
            idempotency_key=idempotency_key or f"auto-{secrets.token_hex(12)}",
        )
        if run_within is not None:
            header.run_within.CopyFrom(duration_field("run_within", run_within))
        self.failure: Exception | None = None
        """The exception that `on_sent` raised. gRPC reports only that the iteration of messages failed."""
        self._header = header
        self._chunks = chunks
        self._on_sent = on_sent

    def __iter__(self) -> Iterator[jobs_pb2.SubmitJobRequest]:
        yield jobs_pb2.SubmitJobRequest(header=self._header)
        sent = 0
        for chunk in self._chunks:
            yield jobs_pb2.SubmitJobRequest(items=chunk)
            sent += len(chunk.items)
            if self._on_sent is not None:
                try:
                    self._on_sent(sent)
                except Exception as error:
                    self.failure = error
                    raise


def chunks_of(items: Iterable[JobItem | EmbedItem]) -> Iterator[jobs_pb2.JobItems]:
    """Convert items lazily, chunk by chunk; a chunk takes some milliseconds.

    Raises:
        TypeError: an item is neither a JobItem nor an EmbedItem, or a value of it is of another type; names the item
            and the field.
        ValueError: a number is out of the range of its type on the wire, or text is not Unicode; names both too.
    """
    chunk, size = jobs_pb2.JobItems(), 0
    for index, item in enumerate(items):
        where = f"items[{index}]"
        if not isinstance(item, JobItem | EmbedItem):
            raise unfit(where, "a JobItem or an EmbedItem", item)
        with below(where):
            wire = item.to_proto()
        if chunk.items and (len(chunk.items) == CHUNK_ITEMS or size + wire.ByteSize() > CHUNK_BYTES):
            yield chunk
            chunk, size = jobs_pb2.JobItems(), 0
        chunk.items.append(wire)
        size += wire.ByteSize()
    if chunk.items:
        yield chunk


def _seconds(moment: Timestamp) -> float:
    return moment.seconds + moment.nanos / 1e9
