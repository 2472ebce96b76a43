"""Files and batches as OpenAI's clients read them. Pure."""

from __future__ import annotations

from typing import Any

from cluster.jobs.contract import JobRecord, JobState
from cluster.jobs.ids import file_of
from penstock.v1 import jobs_pb2 as api
from penstock.wire import duration_from_wire
from router.http.files.ids import ERRORS, OUTPUT, FileId, batch_id
from router.http.files.notes import BatchNote, FileNote, LineError

_STATUSES = {
    # The lines were checked while the file was uploaded, so no batch waits for that.
    JobState.QUEUED: "in_progress",
    JobState.RUNNING: "in_progress",
    JobState.SUCCEEDED: "completed",
    JobState.CANCELLED: "cancelled",
    JobState.EXPIRED: "expired",
    JobState.FAILED: "failed",
}


def file_object(record: JobRecord) -> dict[str, Any]:
    """Return an uploaded file."""
    note = FileNote.read(record.note)
    return _file(
        str(FileId(record.job_id)),
        size=note.size,
        created_ms=record.created_ms,
        due_ms=record.due_ms,
        filename=note.filename,
        purpose="batch",
    )


def results_object(record: JobRecord, name: str, size: int) -> dict[str, Any]:
    """Return a file of a batch's results. `size` is in bytes."""
    return _file(
        str(FileId(record.job_id, name)),
        size=size,
        created_ms=record.ended_ms,
        due_ms=record.due_ms,
        filename=f"{batch_id(record.job_id)}_{name}.jsonl",
        purpose="batch_output",
    )


def _file(file_id: str, *, size: int, created_ms: int, due_ms: int, filename: str, purpose: str) -> dict[str, Any]:
    return {
        "id": file_id,
        "object": "file",
        "bytes": size,
        "created_at": created_ms // 1000,
        "expires_at": due_ms // 1000,
        "filename": filename,
        "purpose": purpose,
        "status": "processed",
        "status_details": None,
    }


def results_of(record: JobRecord) -> tuple[str, ...]:
    """Return the names of the files of results that a batch has, deleted ones left out."""
    return tuple(name for name in made_results(record) if name not in record.dropped.split(","))


def made_results(record: JobRecord) -> tuple[str, ...]:
    """Return the names of the files of results that a batch has or had."""
    if not record.state.ended:
        return ()
    # What did not run is named there too.
    errors = record.failed > 0 or is_unfinished(record)
    return (*((OUTPUT,) if record.results > record.failed else ()), *((ERRORS,) if errors else ()))


def is_unfinished(record: JobRecord) -> bool:
    """Return whether a batch began and ended before all its lines had run."""
    return record.state.ended and record.results < record.items and not BatchNote.read(record.note).errors


def batch_object(record: JobRecord) -> dict[str, Any]:
    note, header, state = BatchNote.read(record.note), api.JobHeader.FromString(record.header), record.state
    usage, results = record.usage, results_of(record)
    ended = record.ended_ms // 1000 or None
    began = not note.errors

    def at(*states: JobState) -> int | None:
        return ended if state in states else None

    return {
        "id": batch_id(record.job_id),
        "object": "batch",
        "endpoint": note.endpoint,
        "model": header.model,
        "errors": _errors(record, note),
        "input_file_id": str(FileId(file_of(record.job_id))),
        "completion_window": note.completion_window,
        "status": _STATUSES[state],
        "output_file_id": str(FileId(record.job_id, OUTPUT)) if OUTPUT in results else None,
        "error_file_id": str(FileId(record.job_id, ERRORS)) if ERRORS in results else None,
        "created_at": record.created_ms // 1000,
        "in_progress_at": record.created_ms // 1000 if began else None,
        "expires_at": (record.created_ms + round(1000 * duration_from_wire(header.run_within))) // 1000,
        "finalizing_at": at(JobState.SUCCEEDED),
        "completed_at": at(JobState.SUCCEEDED),
        "failed_at": at(JobState.FAILED),
        "expired_at": at(JobState.EXPIRED),
        "cancelling_at": at(JobState.CANCELLED),
        "cancelled_at": at(JobState.CANCELLED),
        "request_counts": {
            "total": record.items if began else 0,
            "completed": record.results - record.failed,
            "failed": record.failed,
        },
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.output_tokens,
        },
        "metadata": note.metadata,
    }


def _errors(record: JobRecord, note: BatchNote) -> dict[str, Any] | None:
    errors = list(note.errors)
    if record.lost:
        errors.append(LineError(None, "job_part_lost", f"Redis lost the batch's {record.lost}", None))
    if not errors:
        return None
    data = [{"code": e.code, "line": e.line, "message": e.message, "param": e.param} for e in errors]
    return {"object": "list", "data": data}
