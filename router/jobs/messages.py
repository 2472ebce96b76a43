"""Conversion between the records of the job store and the messages of the API."""

from __future__ import annotations

import base64
import binascii
import secrets
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # no py.typed marker

from cluster.errors import InvalidRequestError
from cluster.jobs.contract import ItemResult, JobCursor, JobRecord, JobState, JobUsage
from penstock.v1 import embeddings_pb2, inference_pb2
from penstock.v1 import jobs_pb2 as api
from penstock.wire import request_class_to_wire
from router.jobs.upload import class_of

_STATES = {
    JobState.QUEUED: api.JOB_STATE_QUEUED,
    JobState.RUNNING: api.JOB_STATE_RUNNING,
    JobState.SUCCEEDED: api.JOB_STATE_SUCCEEDED,
    JobState.CANCELLED: api.JOB_STATE_CANCELLED,
    JobState.EXPIRED: api.JOB_STATE_EXPIRED,
    JobState.FAILED: api.JOB_STATE_FAILED,
}


def job_message(record: JobRecord) -> api.Job:
    """Describe a sealed job."""
    header = api.JobHeader.FromString(record.header)
    job = api.Job(
        job_id=record.job_id,
        model=header.model,
        state=_STATES[record.state],
        request_class=request_class_to_wire(class_of(header)),
        idempotency_key=record.key,
        items=record.items,
        succeeded_items=record.results - record.failed,
        failed_items=record.failed,
        usage=api.JobUsage(
            prompt_tokens=record.usage.prompt_tokens,
            output_tokens=record.usage.output_tokens,
            cached_tokens=record.usage.cached_tokens,
            gpu_seconds=record.usage.gpu_seconds,
            cost=record.usage.cost,
            reasoning_tokens=record.usage.reasoning_tokens,
        ),
        router_id=record.holder,
        failure=_failure(record),
    )
    for field, milliseconds in (
        (job.created_at, record.created_ms),
        (job.started_at, record.started_ms),
        (job.ended_at, record.ended_ms),
        (job.due_at, record.due_ms),
    ):
        if milliseconds:
            field.FromMilliseconds(milliseconds)
    return job


def _failure(record: JobRecord) -> str:
    if record.lost:
        return f"Redis lost the job's {record.lost}, by an eviction or a deletion"
    return "its file has errors, which /v1/batches names" if record.state is JobState.FAILED else ""


def response_result(
    index: int,
    item: api.JobItem,
    response: inference_pb2.GenerateResponse | embeddings_pb2.EmbedResponse,
    repeated: str = "",
) -> ItemResult:
    """Pack an item's output. `repeated`: fields of the request that the answer repeats, as JSON."""
    usage, receipt = response.usage, response.receipt
    used = JobUsage(
        usage.prompt_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        receipt.gpu_seconds,
        receipt.cost,
        usage.reasoning_tokens,
    )
    result = _result(index, item, response.request_id)
    result.response_fields = repeated
    if isinstance(response, embeddings_pb2.EmbedResponse):
        result.embeddings.CopyFrom(response)
        return ItemResult(result.SerializeToString(), usage=used)
    for choice in response.choices:
        if not choice.logprobs:
            # They take as much space as the text, and without log probabilities no client reads them.
            choice.ClearField("token_ids")
    result.response.CopyFrom(response)
    return ItemResult(result.SerializeToString(), usage=used)


def error_result(index: int, item: api.JobItem, status: status_pb2.Status) -> ItemResult:
    """Pack an item's error."""
    result = _result(index, item, secrets.token_hex(12))
    info, wrong = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        if not detail.Unpack(info):
            detail.Unpack(wrong)
    fields = [api.JobFieldError(field=each.field, description=each.description) for each in wrong.field_violations]
    result.error.CopyFrom(api.JobError(code=status.code, reason=info.reason, message=status.message, fields=fields))
    return ItemResult(result.SerializeToString(), failed=True)


def _result(index: int, item: api.JobItem, execution_id: str) -> api.JobResult:
    now = Timestamp()
    now.GetCurrentTime()
    return api.JobResult(
        index=index,
        custom_id=item.custom_id,
        ended_at=now,
        chat=item.request.prompt.HasField("chat"),
        execution_id=execution_id,
    )


@dataclass(frozen=True, slots=True)
class WatchPlace:
    """Position of a watcher: how many results it has, and which execution made the last one.

    Redis may lose its newest writes, and other results may take their places. The execution tells them apart.
    """

    offset: int = 0
    execution_id: str = ""

    def token(self) -> bytes:
        """Return the place as a resume token; b"" for the beginning."""
        return f"{self.offset}:{self.execution_id}".encode() if self.offset else b""

    @classmethod
    def parse(cls, token: bytes) -> WatchPlace:
        """Read a resume token.

        Raises:
            InvalidRequestError: it can't be read.
        """
        if not token:
            return cls()
        number, _, execution_id = token.decode(errors="replace").partition(":")
        if not (number.isascii() and number.isdigit() and len(number) < 10 and execution_id):
            raise InvalidRequestError.of("resume_token", "must come from a WatchJobResponse")
        return cls(int(number), execution_id)


def page_token(record: JobRecord) -> str:
    """Return the token of the list's next page, which begins after this job."""
    return base64.urlsafe_b64encode(f"{record.created_ms}:{record.job_id}".encode()).decode()


def parse_page_token(token: str) -> JobCursor | None:
    """Read a page token. Return None for the first page.

    Raises:
        InvalidRequestError: it can't be read.
    """
    if not token:
        return None
    try:
        created, _, job_id = base64.urlsafe_b64decode(token).decode().partition(":")
        return JobCursor(int(created), job_id)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequestError.of("page_token", "must come from a ListJobsResponse") from error
