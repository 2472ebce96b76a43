"""Durable batches as plain values, and how they travel. All moments are seconds since the epoch."""

from __future__ import annotations

import enum
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp

from penstock.models import RequestClass
from penstock.v1 import jobs_pb2
from penstock.values.durations import duration_field
from penstock.values.requests import GenerateOptions, Prompt, Sampling, request_to_proto
from penstock.values.results import Completion
from penstock.wire import request_class_from_wire, request_class_to_wire

CHUNK_ITEMS = 256
CHUNK_BYTES = 512 << 10
"""A message of an upload ends at either bound; one item may be larger than it."""


class JobState(enum.StrEnum):
    """Says where a job stands."""

    UNKNOWN = "unknown"
    """A state that this version of the client does not know."""
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    """Every item has a result; some may be errors."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self in (JobState.SUCCEEDED, JobState.CANCELLED, JobState.EXPIRED)


_STATES = {
    jobs_pb2.JOB_STATE_QUEUED: JobState.QUEUED,
    jobs_pb2.JOB_STATE_RUNNING: JobState.RUNNING,
    jobs_pb2.JOB_STATE_SUCCEEDED: JobState.SUCCEEDED,
    jobs_pb2.JOB_STATE_CANCELLED: JobState.CANCELLED,
    jobs_pb2.JOB_STATE_EXPIRED: JobState.EXPIRED,
}


@dataclass(frozen=True, slots=True)
class JobItem:
    """Is one generation of a job."""

    custom_id: str
    """The caller's name for it, unique in the job."""
    prompt: Prompt
    sampling: Sampling | None = None
    lora_adapter: str = ""
    session_id: str = ""
    """Groups items that share a long prefix."""
    continue_final_message: bool = False

    def to_proto(self) -> jobs_pb2.JobItem:
        """Convert to the wire.

        Raises:
            TypeError: the prompt is of no known form.
            ValueError: a number does not fit its type on the wire.
        """
        options = GenerateOptions(
            lora_adapter=self.lora_adapter,
            session_id=self.session_id,
            continue_final_message=self.continue_final_message,
        )
        request = request_to_proto("", self.prompt, self.sampling, options)
        request.ClearField("request_class")
        return jobs_pb2.JobItem(custom_id=self.custom_id, request=request)


@dataclass(frozen=True, slots=True)
class JobTotals:
    """Adds up usage over the results of a job."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    gpu_seconds: float
    cost: float


@dataclass(frozen=True, slots=True)
class Job:
    """Describes a job."""

    job_id: str
    model: str
    state: JobState
    request_class: RequestClass
    idempotency_key: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    due_at: float
    """When it expires while it is open, and when it is deleted once it has ended."""
    items: int
    succeeded_items: int
    failed_items: int
    usage: JobTotals
    router_id: str
    """The router that feeds it; empty when none does."""

    @property
    def finished_items(self) -> int:
        """Items that have a result."""
        return self.succeeded_items + self.failed_items

    @classmethod
    def from_proto(cls, wire: jobs_pb2.Job) -> Job:
        """Convert from the wire."""
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
                usage.prompt_tokens, usage.output_tokens, usage.cached_tokens, usage.gpu_seconds, usage.cost
            ),
            router_id=wire.router_id,
        )


@dataclass(frozen=True, slots=True)
class JobItemError:
    """Is why an item has no output."""

    code: int
    """The google.rpc.Code that a call would have ended with."""
    reason: str
    """A stable word, such as INVALID_REQUEST."""
    message: str


@dataclass(frozen=True, slots=True)
class JobResult:
    """Is the one result of an item; exactly one of `completion` and `error` is there."""

    index: int
    """The item's, from 0."""
    custom_id: str
    ended_at: float
    chat: bool
    """The prompt was a conversation."""
    completion: Completion | None
    """Its token ids are empty unless log probabilities were asked for."""
    error: JobItemError | None

    @classmethod
    def from_proto(cls, wire: jobs_pb2.JobResult) -> JobResult:
        """Convert from the wire."""
        error = JobItemError(wire.error.code, wire.error.reason, wire.error.message) if wire.HasField("error") else None
        return cls(
            index=wire.index,
            custom_id=wire.custom_id,
            ended_at=_seconds(wire.ended_at),
            chat=wire.chat,
            completion=Completion.from_proto(wire.response) if error is None else None,
            error=error,
        )


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """Is news of a job."""

    job: Job
    results: tuple[JobResult, ...]
    """New ones, in the order of their completion."""
    resume_token: bytes
    """Another watch goes on behind these results with it."""
    rewound: bool = False
    """The store lost results in a crash, and the stream begins again. What this watch gave before is left out, but not
    what an earlier watch gave, whose token this one began with."""


@dataclass(frozen=True, slots=True)
class JobPage:
    """Is a page of the list of jobs."""

    jobs: tuple[Job, ...]
    next_page_token: str
    """Empty on the last page."""

    @classmethod
    def from_proto(cls, wire: jobs_pb2.ListJobsResponse) -> JobPage:
        """Convert from the wire."""
        return cls(tuple(map(Job.from_proto, wire.jobs)), wire.next_page_token)


class Upload:
    """Is the messages of a submission; may be iterated again for another attempt."""

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
        """`chunks` are from `chunks_of`. Without a key it gets a random one, so that a repetition after a lost answer
        finds the same job.

        Raises:
            ValueError: a number does not fit its type on the wire.
        """
        header = jobs_pb2.JobHeader(
            model=model,
            request_class=request_class_to_wire(request_class),
            idempotency_key=idempotency_key or f"auto-{secrets.token_hex(12)}",
        )
        if run_within is not None:
            header.run_within.CopyFrom(duration_field("run_within", run_within))
        self.failure: Exception | None = None
        """What `on_sent` raised: gRPC only says of it that the messages ended in an error."""
        self._header = header
        self._chunks = chunks
        self._on_sent = on_sent

    def __iter__(self) -> Iterator[jobs_pb2.SubmitJobRequest]:
        """Give the messages in order."""
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


def chunks_of(items: Iterable[JobItem]) -> Iterator[jobs_pb2.JobItems]:
    """Convert items, some milliseconds' worth of them at a time.

    Raises:
        TypeError: a prompt is of no known form.
        ValueError: a number does not fit its type on the wire.
    """
    chunk, size = jobs_pb2.JobItems(), 0
    for item in items:
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
