"""Results of a batch as lines of a file, made when they are read. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from google.rpc import code_pb2  # type: ignore[import-untyped]  # no py.typed marker

from cluster.jobs.contract import JobRecord, JobState
from penstock.batch.embeddings import embedding_value
from penstock.batch.output import result_object
from penstock.v1 import jobs_pb2 as api
from penstock.values.jobs import Job, JobResult
from router.http.bodies import CHAT_NAMES, name_in
from router.http.errors import error_of
from router.http.files.notes import BatchNote
from router.http.responses.lines import URL as RESPONSES
from router.http.responses.lines import response_object
from router.http.responses.places import place_of

_NOT_RUN = {
    JobState.EXPIRED: ("batch_expired", "This request did not run before the batch's completion window ended."),
    JobState.CANCELLED: ("batch_cancelled", "This request did not run before the batch was cancelled."),
}
_LOST = ("batch_failed", "This request did not run before the batch failed.")


def result_line(record: JobRecord, result: api.JobResult) -> bytes:
    """Return the line of a result. An error is the answer that the endpoint would have given."""
    if result.HasField("error"):
        return _line(_error(record, result))
    header = api.JobHeader.FromString(record.header)
    job = Job.from_proto(api.Job(job_id=record.job_id, model=header.model))
    found = result_object(job, JobResult.from_proto(result))
    if result.response_fields and result.HasField("embeddings"):
        _encode(found["response"]["body"], result)
    elif result.response_fields:
        found["response"]["body"] = response_object(record.job_id, result)
    return _line(found)


def _encode(body: dict[str, Any], result: api.JobResult) -> None:
    encoding = json.loads(result.response_fields)["encoding_format"]
    for each, vector in zip(body["data"], result.embeddings.vectors, strict=True):
        each["embedding"] = embedding_value(vector, encoding)


def line_bytes(record: JobRecord, result: bytes) -> int:
    """Return the bytes of the line of a stored result."""
    return len(result_line(record, api.JobResult.FromString(result)))


def unfinished_line(record: JobRecord, index: int, custom_id: str) -> bytes:
    """Return the line of a request that did not run before the batch ended."""
    code, message = _NOT_RUN.get(record.state, _LOST)
    return _line(
        {
            "id": _id(record, index),
            "custom_id": custom_id,
            "response": None,
            "error": {"code": code, "message": message},
        }
    )


def _error(record: JobRecord, result: api.JobResult) -> dict[str, Any]:
    error = result.error
    place = _place(result, responses=bool(error.fields) and BatchNote.read(record.note).endpoint == RESPONSES)
    violations = [(place(each.field), each.description) for each in error.fields]
    found = error_of(error.code, error.reason, error.message, violations)
    if error.code == code_pb2.RESOURCE_EXHAUSTED:
        # A refusal for now is tried again; this one is for good.
        found = replace(found, kind="insufficient_quota")
    answer = {"status_code": found.status, "request_id": result.execution_id, "body": found.object()}
    return {
        "id": _id(record, result.index),
        "custom_id": result.custom_id,
        "response": answer,
        "error": None,
    }


def _place(result: api.JobResult, *, responses: bool) -> Callable[[str], str]:
    """Return the function from paths of our fields to places in the body of a line."""

    def of_chat(field: str) -> str:
        written = name_in(CHAT_NAMES, field)
        return place_of(written) if responses else written

    return of_chat if result.chat else str


def _id(record: JobRecord, index: int) -> str:
    return f"batch_req_{record.job_id}_{index}"


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
